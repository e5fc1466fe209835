"""Names to objects, and back. The grammar, everywhere the same:

    spec = [prefix[(arguments)]:]... member        a transform around a member; they nest
    member = name[(arguments)] | module:object[(arguments)]
    arguments = value, ..., parameter=value, ...

``positive``, ``positive-eps(eps=1e-6)``, ``centre:oprf(rho=0.5)``, ``my_module:MyMap``, ``centre:my_module:Map(n=2)``.
A transform is a dataclass with a class attribute ``prefix`` whose first field is the member inside. Parameters without
a default go by position, in the order of the fields, and are printed so; those with one go by name.
"""

import ast
import dataclasses
import difflib
import hashlib
import importlib
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar, get_args

from favorbench.errors import ScenarioError
from favorbench.formats import shown
from favorbench.users import check_methods, import_object

MAX_LENGTH, MAX_TRANSFORMS = 1000, 16  # of a spec: far beyond what anybody means, and far from Python's own limits

_CALL = re.compile(r"([\w.-]+)\s*(?:\((.*)\))?", re.DOTALL)

Member = TypeVar("Member")


class _Call(NamedTuple):
    """A name with the text between its parentheses, None without any."""

    name: str
    arguments: str | None


class _Spec(NamedTuple):
    """A spec in its parts: transforms from the outermost in, the module of a user's member, the member."""

    transforms: tuple[_Call, ...]
    module: str | None
    member: _Call


def nearest(name: str, allowed: Iterable[str]) -> str:
    """ " (did you mean 'x'?)" for the closest allowed name, or nothing."""
    if len(name) > MAX_LENGTH:
        return ""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


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
    adapt: Callable[[Any], Any] = lambda found: found,
) -> Member:
    """The object that ``spec`` names: a member of the registry or any importable object, inside transforms.

    base: what it is, or one of several. adapt: what to make of a user's object that is none of it, a function say.
    Raises ScenarioError, naming what was given, what is allowed and the nearest name.
    """
    bases = base if isinstance(base, tuple) else (base,)
    if not isinstance(spec, str):
        raise ScenarioError(
            f"{kind}: {shown(spec)} given; allowed: a name, or an object of favorbench.{bases[0].__name__}"
        )
    by_name = {member.name: member for member in members}
    by_prefix = {transform.prefix: transform for transform in transforms}
    parsed = _parsed(kind, spec, by_name, by_prefix)
    found = adapt(_member(kind, spec, parsed, by_name, by_prefix, bases))
    named = isinstance(getattr(found, "name", None), str) and found.name
    if not (isinstance(found, bases) and dataclasses.is_dataclass(found) and named):
        raise _wrong_type(kind, spec, type(found), bases)
    if parsed.module is not None:
        check_methods(kind, spec, type(found), next(base for base in bases if isinstance(found, base)))
    built: Any = found
    for call in reversed(parsed.transforms):
        built = _constructed(kind, spec, by_prefix[call.name], call, built)
    return built


def _wrong_type(kind: str, spec: str, found: type, bases: tuple[type, ...]) -> ScenarioError:
    function = "a function f(query, key, value, size, rng) -> output, or " if kind == "method" else ""
    return ScenarioError(
        f"{kind} {shown(spec)} is of type {found.__name__}; it must be {function}a frozen dataclass derived from "
        f"favorbench.{bases[0].__name__}, with a name"
    )


def _member(
    kind: str, spec: str, parsed: _Spec, by_name: dict[str, type], by_prefix: dict[str, type], bases: tuple[type, ...]
) -> Any:
    """The member inside the transforms of a spec. A class is only called if it is derived from one of ``bases``."""
    name, arguments = parsed.member
    if parsed.module is not None:
        found = import_object(kind, f"{parsed.module}:{name}")
    elif name in by_name:
        found = by_name[name]
    else:
        choices = ", ".join([*by_name, *(f"{form(transform)}:{kind.upper()}" for transform in by_prefix.values())])
        unknown = f"unknown {kind} {shown(name)}{nearest(name, by_name)}"
        raise ScenarioError(f"{unknown}; allowed: {choices}, or module:object")
    if isinstance(found, type):
        if not issubclass(found, bases):
            raise _wrong_type(kind, spec, found, bases)
        return _constructed(kind, spec, found, parsed.member)
    if arguments is not None:
        raise ScenarioError(f"{kind} {shown(spec)}: {shown(name)} is already built and takes no parameters")
    return found


def _parsed(kind: str, spec: str, members: Iterable[str], prefixes: dict[str, type]) -> _Spec:
    """The parts of a spec. Raises ScenarioError for what the grammar does not have, and for an unknown transform."""
    if len(spec) > MAX_LENGTH:
        raise ScenarioError(f"{kind} {shown(spec)} has {len(spec)} characters; allowed: at most {MAX_LENGTH}")
    calls = []
    for part in split_list(spec, ":"):
        match = _CALL.fullmatch(part)
        if match is None:
            forms = ["name", "name(parameter=value)", *(f"{form(transform)}:{kind}" for transform in prefixes.values())]
            raise ScenarioError(f"{shown(spec)} is not a valid {kind}: write {', '.join(forms)} or module:object")
        calls.append(_Call(match[1], match[2]))
    inside = next((i for i, call in enumerate(calls[:-1]) if call.name not in prefixes), len(calls) - 1)
    transforms, rest = tuple(calls[:inside]), calls[inside:]
    unknown = len(rest) > 2 or (len(rest) == 2 and (rest[0].arguments is not None or rest[1].name in members))
    if unknown:
        allowed = ", ".join(prefixes) or "none"
        raise ScenarioError(
            f"{kind} {shown(spec)}: unknown transform {shown(rest[0].name)}{nearest(rest[0].name, prefixes)}; "
            f"allowed: {allowed}"
        )
    if len(transforms) > MAX_TRANSFORMS:
        raise ScenarioError(f"{kind} {shown(spec)} has {len(transforms)} transforms; allowed: at most {MAX_TRANSFORMS}")
    return _Spec(transforms, rest[0].name if len(rest) == 2 else None, rest[-1])


def _constructed(kind: str, spec: str, member: type, call: _Call, *inner: Any) -> Any:
    """member(*inner, parameter=value, ...) from the text between the parentheses."""
    required = _required(member)
    values, texts = _arguments(call.arguments or "") or ([], None)
    if texts is None or (values and not required):
        raise ScenarioError(f"{kind} {shown(spec)}: write parameters as name(parameter=value, ...)")
    _check_positions(kind, spec, member, call.name, len(values), texts)
    _check_names(kind, spec, member, texts)
    texts |= zip(required, values, strict=False)
    try:
        parameters = {name: ast.literal_eval(value) for name, value in texts.items()}
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise ScenarioError(f"{kind} {shown(spec)}: values are numbers, or texts in quotes: law='poisson'") from None
    try:
        return member(*inner, **parameters)
    except Exception as error:  # a user's class may fail in any way
        if isinstance(error, TypeError) and (missing := [name for name in required if name not in parameters]):
            needs = f"{call.name} needs {', '.join(missing)}, e.g. {call.name}({_example(member)})"
            raise ScenarioError(f"{kind} {shown(spec)}: {needs}") from error
        raise ScenarioError(f"{kind} {shown(spec)}: {error}") from error


def _arguments(text: str) -> tuple[list[ast.expr], dict[str, ast.expr]] | None:
    """The expressions of a call, by position and by keyword; None where there is anything else, or a keyword twice."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    found = {word.arg: word.value for word in call.keywords if word.arg is not None}
    unpacked = any(isinstance(value, ast.Starred) for value in call.args)
    return None if unpacked or len(found) < len(call.keywords) else (call.args, found)


def _own_fields(member: Any) -> list[dataclasses.Field]:
    """The parameters of a dataclass or of an object of one: what its constructor takes but for a transform's inside."""
    if not dataclasses.is_dataclass(member):
        return []
    own = dataclasses.fields(member)[1 if getattr(member, "prefix", "") else 0 :]
    return [field for field in own if field.init]


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _required(member: Any) -> list[str]:
    """The parameters without a default, which are given by position."""
    return [field.name for field in _own_fields(member) if _is_required(field)]


def form(transform: type[Any]) -> str:
    """How a transform is written: its prefix, and the names of what it needs."""
    required = _required(transform)
    return transform.prefix + (f"({', '.join(required)})" if required else "")


def parameters(member: type[Any]) -> str:
    """What a member takes: the names of what it needs, then names with their defaults, and what else they may be.

    "n, sampler='orthogonal'" or "points='random'|'pivots', lloyd=0"; "-" for nothing.
    """
    texts = []
    for field in _own_fields(member):
        others = [value for value in get_args(field.type) if value != field.default]
        default = "" if _is_required(field) else "=" + "|".join(map(repr, [field.default, *others]))
        texts.append(field.name + default)
    return ", ".join(texts) or "-"


def _example(member: type) -> str:
    """Values for the parameters without a default, by their types; the name of one whose type says nothing."""
    values = {"int": "64", "float": "0.5", "str": "'text'"}
    required = [field for field in _own_fields(member) if _is_required(field)]
    types = [field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "") for field in required]
    return ", ".join(values.get(name, field.name) for name, field in zip(types, required, strict=True))


def _check_positions(kind: str, spec: str, member: type, name: str, count: int, keywords: Iterable[str]) -> None:
    """Raise ScenarioError for more values without a name than there are parameters without a default, or one twice."""
    required = _required(member)
    if count > len(required):
        others = [field.name for field in _own_fields(member) if field.name not in required]
        rest = f"write other parameters as name=value: {', '.join(others)}" if others else "it has no other parameter"
        raise ScenarioError(
            f"{kind} {shown(spec)}: {name} takes {', '.join(required)} by position, not {count} values; {rest}"
        )
    for twice in [one for one in required[:count] if one in keywords]:
        raise ScenarioError(f"{kind} {shown(spec)}: {name} has {twice} twice, by position and by name")


def _check_names(kind: str, spec: str, member: type, given: Iterable[str]) -> None:
    """Raise ScenarioError for a parameter that a dataclass does not have; other classes check their own."""
    if not dataclasses.is_dataclass(member):
        return
    allowed = [field.name for field in _own_fields(member)]
    for name in given:
        if name not in allowed:
            known = f"it has {', '.join(allowed)}" if allowed else "it has none"
            raise ScenarioError(f"{kind} {shown(spec)}: no parameter {shown(name)}{nearest(name, allowed)}; {known}")


def source_digest(spec: str, member: Any) -> str | None:
    """SHA-256 of the source of a user's module, so that a run notices when it changes; None for our own members."""
    _, _, parts = _opened(member, spec)
    if len(parts) == 1:
        return None
    path = getattr(importlib.import_module(parts[0]), "__file__", None)
    if not path:
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def declared_version(member: Any) -> object:
    """What a member, or the function that it asks, declares as its ``version``; None where it declares none.

    Whoever means an estimator to give other numbers from now on raises it: then nobody compares them with the old ones.
    """
    _, inside, _ = _opened(member)
    own = getattr(inside, "version", None)
    return getattr(getattr(inside, "function", None), "version", None) if own is None else own


def label(member: Any) -> str:
    """The canonical name of a map or sampler: transforms, name, and the parameters that are not at their default."""
    prefixes, inside, _ = _opened(member)
    return prefixes + inside.name + _parameters(inside)


def canonical(spec: str, member: Any) -> str:
    """The one spelling of all specs that build this member in this way: ``label``, but with module:object kept."""
    prefixes, inside, parts = _opened(member, spec)
    if len(parts) == 1:
        return label(member)
    attribute, parenthesis, _ = parts[1].partition("(")
    return f"{prefixes}{parts[0]}:{attribute.strip()}{_parameters(inside) if parenthesis else ''}"


def _opened(member: Any, spec: str | None = None) -> tuple[str, Any, list[str]]:
    """The spelling of a member's transforms, the member inside them, and what its spec has after them."""
    prefixes, parts = "", split_list(spec, ":") if spec is not None else None
    while prefix := getattr(member, "prefix", ""):
        if parts is not None and parts[0].partition("(")[0].strip() != prefix:
            break  # the transform is part of what the user's module holds
        prefixes += f"{prefix}{_parameters(member)}:"
        member = getattr(member, dataclasses.fields(member)[0].name)
        parts = parts and parts[1:]
    return prefixes, member, parts or []


def _parameters(member: Any) -> str:
    """(value, ..., parameter=value, ...): those without a default, then those that are not at theirs, as fields stand.

    A whole number for a float parameter is printed as a float: the values are equal, so must be the names.
    """
    positional, named = [], []
    for field in _own_fields(member):
        value: Any = getattr(member, field.name, None)
        whole = type(value) is int and "float" in str(field.type)
        text = repr(float(value) if whole else value)
        if _is_required(field):
            positional.append(text)
        elif value != field.default:
            named.append(f"{field.name}={text}")
    return f"({', '.join([*positional, *named])})" if positional or named else ""
