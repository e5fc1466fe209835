"""Names to objects, and back.

The grammar is the same everywhere:

    spec = [prefix[(arguments)]:]... member        a transform around a member; they nest
    member = name[(arguments)] | module:object[(arguments)]
    arguments = value, ..., parameter=value, ...

``positive``, ``positive-eps(eps=1e-6)``, ``centre:oprf(rho=0.5)``, ``my_module:MyMap``, ``centre:my_module:Map(n=2)``.
A transform is a dataclass with a class attribute ``prefix`` whose first field is the member inside. Parameters without
a default go by position, in the order of the fields, and are printed so; those with one go by name.
"""

import ast
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from favorbench.errors import ScenarioError
from favorbench.formats import shown
from favorbench.parameters import nearest
from favorbench.users import check_methods, import_object, module_digest

MAX_LENGTH, MAX_TRANSFORMS = (
    1000,
    16,
)  # characters of a spec: more than any meaningful one has, and far from Python's limits

_CALL = re.compile(r"([\w.-]+)\s*(?:\((.*)\))?", re.DOTALL)

Member = TypeVar("Member")


class _Call(NamedTuple):
    """A name with the text between its parentheses, None without any."""

    name: str
    arguments: str | None


def split_list(text: str, separator: str = ",") -> list[str]:
    """Split outside parentheses and quotes: ``"a,b(x=1,y=2)"`` -> ``["a", "b(x=1,y=2)"]``."""
    parts, start, depth, quote = [], 0, 0, ""
    for match in re.finditer(r"['\"()\[\]{}]|" + re.escape(separator), text):
        character = match[0]
        if quote or character in "'\"":
            quote = "" if character == quote else quote or character
        elif character != separator:
            depth += 1 if character in "([{" else -1
        elif not depth:
            parts.append(text[start : match.start()])
            start = match.end()
    return [part.strip() for part in (*parts, text[start:])]


def build(
    kind: str,
    spec: str,
    members: Iterable[type[Any]],
    base: type[Member] | tuple[type[Member], ...],
    transforms: Iterable[type[Any]] = (),
    adapt: Callable[[Any], Any] = lambda member: member,
) -> Member:
    """Build the object that ``spec`` names: a member of the registry or any importable object, inside transforms.

    base: its class, or several. adapt: turns a user's object of another type, such as a function, into one of these.
    Raises ScenarioError with what was given, what is allowed and the nearest name.
    """
    bases = base if isinstance(base, tuple) else (base,)
    if not isinstance(spec, str):
        raise ScenarioError(
            f"{kind}: {shown(spec)} given; allowed: a name, or an object of favorbench.{bases[0].__name__}"
        )
    by_name, by_prefix = {member.name: member for member in members}, {cls.prefix: cls for cls in transforms}
    builder = _Builder(kind, spec, by_name, by_prefix, bases)
    if len(spec) > MAX_LENGTH:
        raise builder.error(f" has {len(spec)} characters; allowed: at most {MAX_LENGTH}")
    outer, module, call = builder.parse()
    built: Any = adapt(builder.member(module, call))
    builder.check_type(built, users=module is not None)
    for transform in reversed(outer):
        built = builder.construct(by_prefix[transform.name], transform, built)
    return built


@dataclasses.dataclass(frozen=True)
class _Builder:
    """The parts of ``build``, which share what is given and what is allowed. members, transforms: by name."""

    kind: str
    spec: str
    members: dict[str, type]
    transforms: dict[str, type]
    bases: tuple[type, ...]

    def error(self, message: str) -> ScenarioError:
        """An error about the spec."""
        return ScenarioError(f"{self.kind} {shown(self.spec)}{message}")

    def check_type(self, member: Any, users: bool) -> None:
        """Raise ScenarioError unless this is a named dataclass of one of the bases. users: check its methods, too."""
        base = next((base for base in self.bases if isinstance(member, base)), None)
        name = getattr(member, "name", None)
        if base is None or not dataclasses.is_dataclass(member) or not isinstance(name, str) or not name:
            raise self.wrong_type(type(member))
        if users:
            check_methods(self.kind, self.spec, type(member), base)

    def wrong_type(self, type_found: type) -> ScenarioError:
        """The error for an object of this type."""
        function = "a function f(query, key, value, size, rng) -> output, or " if self.kind == "method" else ""
        return self.error(
            f" is of type {type_found.__name__}; it must be {function}a frozen dataclass derived from "
            f"favorbench.{self.bases[0].__name__}, with a name"
        )

    def forms(self, inside: str) -> list[str]:
        """How transforms are written."""
        return [f"{form(transform)}:{inside}" for transform in self.transforms.values()]

    def parse(self) -> tuple[list[_Call], str | None, _Call]:
        """Split the spec: transforms from the outermost in, a module or None, and the member."""
        matches = [_CALL.fullmatch(part) for part in split_list(self.spec, ":")]
        calls = [_Call(match[1], match[2]) for match in matches if match]
        if len(calls) < len(matches):
            forms = ", ".join(["name", "name(parameter=value)", *self.forms(self.kind)])
            raise ScenarioError(f"{shown(self.spec)} is not a valid {self.kind}: write {forms} or module:object")
        is_transform = [call.name in self.transforms for call in calls[:-1]]
        depth = [*is_transform, False].index(False)
        rest = calls[depth:]
        if len(rest) > 2 or (len(rest) == 2 and (rest[0].arguments is not None or rest[1].name in self.members)):
            unknown = f"{shown(rest[0].name)}{nearest(rest[0].name, self.transforms)}"
            allowed = ", ".join(self.transforms) or "none"
            if rest[0].arguments is None and rest[1].name in self.members:
                allowed += f"; if it is a module: nothing of it may be called {rest[1].name!r}, which is a {self.kind}"
            raise self.error(f": unknown transform {unknown}; allowed: {allowed}")
        if depth > MAX_TRANSFORMS:
            raise self.error(f" has {depth} transforms; allowed: at most {MAX_TRANSFORMS}")
        return calls[:depth], rest[0].name if len(rest) > 1 else None, rest[-1]

    def member(self, module: str | None, call: _Call) -> Any:
        """The member inside the transforms. A class is only called if it is derived from one of ``bases``."""
        if module is not None:
            target = import_object(self.kind, f"{module}:{call.name}")
        elif call.name in self.members:
            target = self.members[call.name]
        else:
            choices = ", ".join([*self.members, *self.forms(self.kind.upper())])
            unknown = f"unknown {self.kind} {shown(call.name)}{nearest(call.name, self.members)}"
            raise ScenarioError(f"{unknown}; allowed: {choices}, or module:object")
        if isinstance(target, type):
            if not issubclass(target, self.bases):
                raise self.wrong_type(target)
            return self.construct(target, call)
        if call.arguments is not None:
            raise self.error(f": {shown(call.name)} is already built and takes no parameters")
        return target

    def construct(self, member: type, call: _Call, *inner: Any) -> Any:
        """member(*inner, parameter=value, ...) from the text between the parentheses."""
        parameters = self.parameters(member, call)
        try:
            return member(*inner, **parameters)
        except Exception as error:  # a user's class may fail in any way
            missing = [name for name in _required(member) if name not in parameters]
            if missing and isinstance(error, TypeError):
                example = f"{call.name}({_example(member)})"
                raise self.error(f": {call.name} needs {', '.join(missing)}, e.g. {example}") from error
            raise self.error(f": {error}") from error

    def parameters(self, member: type, call: _Call) -> dict[str, Any]:
        """The values of a call by name. Those without a default may be given by position."""
        required = _required(member)
        values, texts = _arguments(call.arguments or "") or ([], None)
        if texts is None or (values and not required):
            raise self.error(": write parameters as name(parameter=value, ...)")
        by_position = dict(zip(required, values, strict=False))
        self.check_names(member, call, len(values), required, texts)
        try:
            given = {name: ast.literal_eval(value) for name, value in (texts | by_position).items()}
        except (ValueError, TypeError, RecursionError, MemoryError):
            raise self.error(": values are numbers, or texts in quotes: law='poisson'") from None
        sampler = given.get("sampler")  # in which a file may not hide a module from check_trusted
        if isinstance(sampler, str) and not any(f"{quote}{sampler}{quote}" in self.spec for quote in "'\""):
            raise self.error(f": write the sampler {sampler!r} in one piece, without escapes")
        return given

    def check_names(
        self, member: type, call: _Call, positions: int, required: Sequence[str], names: Iterable[str]
    ) -> None:
        """Raise ScenarioError for too many values by position, and for a parameter that is unknown or given twice."""
        fields = [field.name for field in _own_fields(member)]
        if positions > len(required):
            others = ", ".join(name for name in fields if name not in required)
            rest = f"write other parameters as name=value: {others}" if others else "it has no other parameter"
            raise self.error(f": {call.name} takes {', '.join(required)} by position, not {positions} values; {rest}")
        for name in names:
            if name in required[:positions]:
                raise self.error(f": {call.name} has {name} twice, by position and by name")
            if name not in fields and dataclasses.is_dataclass(member):  # other classes check their own
                known = f"it has {', '.join(fields)}" if fields else "it has none"
                raise self.error(f": no parameter {shown(name)}{nearest(name, fields)}; {known}")


def _arguments(text: str) -> tuple[list[ast.expr], dict[str, ast.expr]] | None:
    """The expressions of a call, by position and by keyword; None for anything else, and for a repeated keyword."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    keywords = {word.arg: word.value for word in call.keywords if word.arg is not None}
    unpacked = any(isinstance(value, ast.Starred) for value in call.args)
    return None if unpacked or len(keywords) < len(call.keywords) else (call.args, keywords)


def _own_fields(member: Any) -> list[dataclasses.Field]:
    """The parameters of a dataclass, or of its instance, without the member inside a transform."""
    if not dataclasses.is_dataclass(member):
        return []
    fields = dataclasses.fields(member)[1 if getattr(member, "prefix", "") else 0 :]
    return [field for field in fields if field.init]


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _required(member: Any) -> list[str]:
    """The parameters without a default, which are given by position."""
    return [field.name for field in _own_fields(member) if _is_required(field)]


def form(transform: type[Any]) -> str:
    """How a transform is written: its prefix, and the names of its required parameters."""
    required = _required(transform)
    return transform.prefix + (f"({', '.join(required)})" if required else "")


def parameters(member: type[Any]) -> str:
    """The parameters of a member: those without a default, then those with one, and the other allowed values.

    "n, sampler='orthogonal'" or "points='random'|'pivots', lloyd=0"; "-" for nothing.
    """
    texts = []
    for field in sorted(_own_fields(member), key=_is_required, reverse=True):
        choices = get_args(field.type) if get_origin(field.type) is Literal else ()
        others = [value for value in choices if value != field.default]
        default = "" if _is_required(field) else "=" + "|".join(map(repr, [field.default, *others]))
        texts.append(field.name + default)
    return ", ".join(texts) or "-"


def _example(member: type) -> str:
    """Example values of the required parameters, by their types; the name of a parameter of another type."""
    values = {"int": "64", "float": "0.5", "str": "'text'"}
    return ", ".join(
        values.get(str(getattr(field.type, "__name__", field.type)), field.name)
        for field in _own_fields(member)
        if _is_required(field)
    )


def source_digest(spec: str, member: Any) -> str | None:
    """SHA-256 of the source of a user's module, so that a run notices a change; None for our own members."""
    _, _, parts = _opened(member, spec)
    return None if len(parts) == 1 else module_digest(parts[0])


def is_ours(member: Any) -> bool:
    """Whether the class of a member, inside its transforms and adapters, is one of favorbench's."""
    while (inside := getattr(member, "wrapped", None)) is not None:
        member = inside
    return type(member).__module__.partition(".")[0] == "favorbench"


def declared_version(member: Any) -> object:
    """The ``version`` that a member, or the function that it wraps, declares; None if it declares none.

    Raise it when an estimator is meant to give other numbers: these are then not compared with the old ones.
    """
    _, inside, _ = _opened(member)
    version = getattr(inside, "version", None)
    return getattr(getattr(inside, "function", None), "version", None) if version is None else version


def label(member: Any) -> str:
    """The canonical name of a member: transforms, name, and the parameters that are not at their default."""
    prefixes, inside, _ = _opened(member)
    return prefixes + inside.name + _parameters(inside)


def canonical(spec: str, member: Any) -> str:
    """The canonical spelling of a spec: ``label``, but with module:object kept."""
    prefixes, inside, parts = _opened(member, spec)
    if len(parts) == 1:
        return label(member)
    attribute, parenthesis, _ = parts[1].partition("(")
    return f"{prefixes}{parts[0]}:{attribute.strip()}{_parameters(inside) if parenthesis else ''}"


def _opened(member: Any, spec: str | None = None) -> tuple[str, Any, list[str]]:
    """The spelling of a member's transforms, the member inside, and the parts of its spec after them."""
    prefixes, parts = "", split_list(spec, ":") if spec is not None else None
    while prefix := getattr(member, "prefix", ""):
        if parts is not None and parts[0].partition("(")[0].strip() != prefix:
            break  # the transform is part of what the user's module holds
        prefixes += f"{prefix}{_parameters(member)}:"
        member = getattr(member, dataclasses.fields(member)[0].name)
        parts = parts and parts[1:]
    return prefixes, member, parts or []


def _parameters(member: Any) -> str:
    """(value, ..., parameter=value, ...): those without a default, then those that differ from it, in field order.

    An integer for a float parameter is printed as a float, and -0.0 as 0.0: the values are equal, so the names must be.
    """
    positional, named = [], []
    for field in _own_fields(member):
        text, make = _text(field, getattr(member, field.name, None)), field.default_factory
        if _is_required(field):
            positional.append(text)
        elif text != _text(field, field.default if make is dataclasses.MISSING else make()):
            named.append(f"{field.name}={text}")
    return f"({', '.join([*positional, *named])})" if positional or named else ""


def _text(field: dataclasses.Field, value: Any) -> str:
    """How the value of a parameter is printed."""
    whole = type(value) is int and "float" in str(field.type)
    return repr(float(value) + 0.0 if whole or isinstance(value, float) else value)
