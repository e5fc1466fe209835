"""Scenarios: a TOML file or flags, or both, become one frozen, validated description of a study."""

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from favorbench.baselines import BASELINES, get_baseline, no_map
from favorbench.engine.memory import Held, extract_arrays
from favorbench.errors import ScenarioError
from favorbench.files import read_regular
from favorbench.formats import ALIASES, shown
from favorbench.inputs import SHIPPED, Fixed, InputLaw, Layout, data_directory, get_input, reader_of
from favorbench.maps import TRANSFORMS as MAP_TRANSFORMS
from favorbench.maps import get_map
from favorbench.methods import METHODS, PREFIXES, get_method
from favorbench.numerics.backend import DTYPES
from favorbench.registry import canonical, label, nearest, split_list
from favorbench.samplers import TRANSFORMS as SAMPLER_TRANSFORMS
from favorbench.samplers import get_sampler
from favorbench.users import check_trusted

#: Keys that name members, and what builds them.
MEMBERS: Mapping[str, Callable[..., Any]] = {
    "maps": get_map, "samplers": get_sampler, "methods": get_method, "baselines": get_baseline, "inputs": get_input,
}  # fmt: skip

_ESTIMATORS = ("maps", "samplers", "methods", "baselines")

#: What may stand before a colon in a spec without being a module.
TRANSFORM_NAMES = {transform.prefix for transform in (*MAP_TRANSFORMS, *SAMPLER_TRANSFORMS, *PREFIXES)}

#: Keys whose flags are lists with commas: of names, of numbers.
_NAMES = ("maps", "samplers", "methods", "baselines", "inputs", "heads", "dtype")
_NUMBERS = ("num_projections", "seq_len", "head_dim", "scale")
_SINGLE_NUMBERS = ("value_scale", "query_rows", "trials", "seed")

#: What stands beside maps, by what it is: names that no map may have.
_NO_MAPS = {"method": {member.name for member in METHODS}, "baseline": {member.name for member in BASELINES}}

DEFAULT_SCENARIO = "quick"

ALL_ROWS, SOME_ROWS = 4096, 1024  # query rows on which the error is measured, unless a scenario says otherwise

#: Validation context of a scenario that was resolved before: nothing is built, no user's module is imported.
NAMES_ONLY = {"names_only": True}

MAX_TEXT = 100_000  # characters of a list that is given as one text


class Names(tuple[str, ...]):
    """Canonical names of a scenario's members, with what they name: built once, by the validation of the scenario."""

    members: tuple[Any, ...]

    @staticmethod
    def of(names: Iterable[str], members: Iterable[Any]) -> "Names":
        """Names and members, one for one."""
        found = Names(names)
        found.members = tuple(members)
        return found

    def where(self, keep: Callable[[Any], bool]) -> "Names":
        """Those whose members are to be kept."""
        kept = [(name, member) for name, member in zip(self, self.members, strict=True) if keep(member)]
        return Names.of(*zip(*kept, strict=True))


def _as_tuple(value: Any) -> Any:
    """One value is a list of one, a text with commas several. Repeated values are kept once."""
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise ScenarioError(f"a text of {len(value)} characters given, allowed: a list of at most {MAX_TEXT}")
        value = split_list(value)
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return tuple(dict.fromkeys(values)) if all(isinstance(v, str | int | float) for v in values) else values


def _or_none(value: Any) -> Any:
    """ "none" is a list of nothing, as an empty text is not."""
    alone = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    return () if isinstance(alone, str) and alone == "none" else value


_Several = BeforeValidator(_as_tuple)
_OrNone = BeforeValidator(_or_none)  # before _Several: the last of these comes first
_Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_Size = Annotated[int, Field(ge=1, le=1 << 20)] | Literal["dlogd"]
_Length = Annotated[int, Field(ge=1, le=1 << 24)]
_Dim = Annotated[int, Field(ge=1, le=4096)]
_Nonempty = Field(min_length=1)


class Scenario(BaseModel):
    """What to measure. Lists multiply: every map x sampler x R on every input x scale x L x d x dtype, trials times.

    Raises pydantic.ValidationError; ``load_scenario`` turns that into a ScenarioError of one line.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern=r"^[\w.-]{1,80}$")] = "scenario"
    title: str = ""
    maps: Annotated[tuple[str, ...], _Several, _OrNone]
    samplers: Annotated[tuple[str, ...], _Several, _Nonempty]
    methods: Annotated[tuple[str, ...], _Several, _OrNone, Field(validate_default=True)] = ()
    baselines: Annotated[tuple[str, ...], _Several, Field(validate_default=True)] = (
        "uniform", "taylor-1", "taylor-2", "best-rank"
    )  # fmt: skip
    num_projections: Annotated[tuple[_Size, ...], _Several, _Nonempty]
    layout: Layout = "heads,L,d"
    inputs: Annotated[tuple[str, ...], _Several, _Nonempty, Field(validate_default=True)] = ("gaussian",)
    calibrate: str | None = None
    heads: Annotated[tuple[str, ...], _Several, _Nonempty] | None = None
    seq_len: Annotated[tuple[_Length, ...], _Several, _Nonempty] | None = None
    head_dim: Annotated[tuple[_Dim, ...], _Several, _Nonempty] | None = None
    scale: Annotated[tuple[_Positive, ...], _Several, _Nonempty] = (1.0,)
    value_scale: _Positive = 1.0
    dtype: Annotated[tuple[Literal[DTYPES["torch"]], ...], _Several, _Nonempty] = ("float64",)  # pyright: ignore
    query_rows: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    causal: bool = False
    backend: Literal["numpy", "torch"] = "numpy"
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,3})?)$")] = "cpu"
    budget: Literal["projections", "features", "cost"] = "projections"
    redraw: Literal["trial", "R"] = "trial"
    trials: Annotated[int, Field(ge=1, le=1_000_000)] = 15
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    cluster: Annotated[str | None, Field(exclude=True)] = None  # where it is computed is no part of what is measured
    _held: Mapping[str, InputLaw] = PrivateAttr(default_factory=dict)
    _left_out: tuple[str, ...] = PrivateAttr(())

    @property
    def held(self) -> Mapping[str, InputLaw]:
        """Inputs in memory, by name."""
        return self._held

    @property
    def left_out(self) -> tuple[str, ...]:
        """What a shipped scenario has beside what is measured here, and what cannot be causal."""
        return self._left_out

    @field_validator(*MEMBERS)
    @classmethod
    def _built(cls, specs: tuple[str, ...], info: Any) -> tuple[str, ...]:
        """Every name can be built, and no two are the same thing. Names are kept in their canonical spelling."""
        key = info.field_name
        if info.context == NAMES_ONLY:
            return specs
        for spec in specs if key == "maps" else ():
            if found := no_map(spec):
                name, kind = found
                asked = f"`{'baselines' if kind == 'baseline' else 'methods'}` {spec}"
                raise ScenarioError(f"{name!r} is a {kind}, not a map: write {asked}")
        if key == "methods" and not specs and not info.data.get("maps", True):
            raise ScenarioError("there is neither a map nor a method to measure: give `maps`, `methods` or both")
        known = _NO_MAPS["baseline"] if key == "methods" else ()
        if found := next((spec for spec in specs if spec in known), None):
            raise ScenarioError(f"{found!r} is a baseline, not a method: write `baselines` {found}")
        if key == "baselines":
            specs = specs if "uniform" in specs else ("uniform", *specs)
        members = [_built_member(key, spec, info) for spec in specs]
        labels = [spec if isinstance(m, Fixed) else label(m) for spec, m in zip(specs, members, strict=True)]
        _check_names(key, labels, info.data.get("maps") or ())
        for i, name in enumerate(labels):
            if name in labels[:i]:
                raise ScenarioError(f"{specs[i]!r} and {specs[labels.index(name)]!r} are both called {name!r}")
        if key == "inputs":
            return Names.of(labels, members)
        return Names.of((canonical(spec, m) for spec, m in zip(specs, members, strict=True)), members)

    @field_validator("calibrate")
    @classmethod
    def _an_input(cls, spec: str | None, info: Any) -> str | None:
        """What maps are calibrated on is what inputs may be."""
        if spec is not None and info.context != NAMES_ONLY:
            _built_member("inputs", spec, info)
        return spec

    def sizes(self, head_dim: int) -> tuple[int, ...]:
        """The values of R for a head_dim, increasing; "dlogd" is int(d ln d), at least 1."""
        rule = max(1, int(head_dim * math.log(head_dim)))
        return tuple(sorted({rule if size == "dlogd" else size for size in self.num_projections}))

    def rows(self, query_len: int) -> int:
        """On how many query rows the error is measured: all up to ALL_ROWS, then SOME_ROWS, unless query_rows says."""
        default = query_len if query_len <= ALL_ROWS else SOME_ROWS
        return min(query_len, default if self.query_rows is None else self.query_rows)


def _built_member(key: str, spec: str, info: Any) -> Any:
    """The member that a name of a key stands for; inputs in memory are in the context of the validation."""
    if key != "inputs":
        return MEMBERS[key](spec)
    held = (info.context or {}).get("held", {})
    return held[spec] if spec in held else MEMBERS[key](spec, info.data.get("layout", "heads,L,d"))


def _check_names(key: str, labels: Sequence[str], maps: Iterable[str]) -> None:
    """Raise ScenarioError where a map, or a user's method, has the name of something else: rows would be mixed."""
    taken = {name: kind for kind, names in _NO_MAPS.items() for name in names if key == "maps" or kind == "baseline"}
    taken |= {name: "map" for name in maps if key == "methods"}
    for name in labels if key in ("maps", "methods") else ():
        if name in taken:
            raise ScenarioError(f"a {key[:-1]} may not be called {name!r}: that is the name of a {taken[name]}")


def shipped_scenarios() -> dict[str, Path]:
    """The scenarios that come with favorbench, by name."""
    return {path.stem: path for path in sorted(data_directory().glob("*.toml"))}


def load_scenario(source: str | None = None, flags: Mapping[str, Any] | None = None) -> Scenario:
    """A scenario from a file or a shipped name (default: "quick"), with flags on top; a flag of None was not given.

    Flags that are lists may be strings with commas. Raises ScenarioError: the file or flag, the key, the value, what
    is allowed and the nearest name; and InputError for arrays among them that cannot be measured.

    >>> import favorbench as fb
    >>> scenario = fb.load_scenario("quick", {"maps": "positive,oprf", "trials": 5})
    >>> scenario.maps, scenario.trials
    (('positive', 'oprf'), 5)
    """
    path = _find(source or DEFAULT_SCENARIO)
    content = _read_toml(path)
    for short, full in ALIASES.items():
        if short in content and full in content:
            raise ScenarioError(f"{path}: {short!r} and {full!r} are the same key; give one of them")
    values: dict[str, Any] = {"name": path.stem} | {ALIASES.get(key, key): value for key, value in content.items()}
    origin = {"": str(path)} | {ALIASES.get(key, key): f"{path}: {key}" for key in content}
    flags, held = extract_arrays(flags or {})
    given = {key: _parsed(key, value) for key, value in flags.items() if value is not None}
    if _reads_data(given.get("inputs"), held):  # a file's own L and d win over those of a scenario for other inputs
        values = {key: value for key, value in values.items() if key not in ("seq_len", "head_dim")}
    _check_trusted({key: value for key, value in values.items() if key not in given}, path)
    if not all(_same(value, values.get(key)) for key, value in given.items() if key != "cluster"):
        values["title"] = f"{path.stem}, changed by flags"
    scenario = validated(values | given, origin | {key: f"`{key}`" for key in given}, held)
    if "causal" not in values | given and _are_causal(scenario):
        scenario = scenario.model_copy(update={"causal": True})
    return _without_what_cannot_be_causal(scenario, given, path) if scenario.causal else scenario


def _check_trusted(values: Mapping[str, Any], file: str | Path) -> None:
    """Raise ScenarioError where a file names estimators of modules that it may not import."""
    for key in _ESTIMATORS:
        specs = values.get(key) or ()
        texts = [specs] if isinstance(specs, str) else specs if isinstance(specs, list | tuple) else []
        check_trusted((text for text in texts if isinstance(text, str)), file, TRANSFORM_NAMES)


def _are_causal(scenario: Scenario) -> bool:
    """Whether all inputs say that they are: then they are measured so, unless a flag or the scenario says otherwise."""
    return all(isinstance(law, Fixed) and law.causal for law in cast(Names, scenario.inputs).members)


def _without_what_cannot_be_causal(scenario: Scenario, given: Mapping[str, Any], path: Path) -> Scenario:
    """The scenario without what nobody asked for by a flag and cannot be causal: baselines, and members of a shipped
    scenario as long as others are left."""
    changes, left_out = {}, []
    shipped = path in shipped_scenarios().values()
    for key in ("baselines", *(("maps", "methods") if shipped else ())):
        names = cast(Names, getattr(scenario, key))
        out = [name for name, member in zip(names, names.members, strict=True) if not member.causal_safe]
        if key in given or not out or len(out) == len(names):
            continue
        changes[key] = names.where(lambda member: member.causal_safe)
        left_out += out if key != "baselines" else []
    copied = scenario.model_copy(update=changes)
    copied._left_out = tuple(left_out)
    return copied


def _same(one: Any, other: Any) -> bool:
    """Whether two values of a key mean the same; what no key takes, an array say, is the validation's to name."""
    one, other = _as_tuple(one), _as_tuple(other)
    return all(isinstance(value, str | int | float) for value in (*one, *other)) and one == other


def _reads_data(inputs: Any, held: Held) -> bool:
    """Whether any of the inputs that were asked for is read from a file, or in memory."""
    return any(isinstance(s, str) and (s in SHIPPED or s in held or reader_of(s)) for s in _as_tuple(inputs))


def validated(values: Mapping[str, Any], origin: Mapping[str, str] | None = None, held: Held | None = None) -> Scenario:
    """A Scenario from keys and values. Raises ScenarioError with one line that names the origin of the bad key.

    held: inputs in memory, by the names that the scenario has for them.
    """
    try:
        scenario = Scenario.model_validate(dict(values), context={"held": held or {}})
    except ValidationError as error:
        raise ScenarioError(_one_line(error, origin or {})) from None
    scenario._held = held or {}
    return scenario


def shipped_title(name: str) -> str | None:
    """The title of a shipped scenario, None for another name."""
    path = shipped_scenarios().get(name)
    return None if path is None else _read_toml(path).get("title", "")


def _find(source: str) -> Path:
    shipped = shipped_scenarios()
    if source in shipped:
        return shipped[source]
    path = Path(source)
    if path.suffix == ".toml" or path.exists():
        return path
    raise ScenarioError(
        f"unknown scenario {source!r}{nearest(source, shipped)}; allowed: {', '.join(shipped)}, "
        "or a path to a .toml file"
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(path, "scenario", ScenarioError).decode("utf-8"))
    except ScenarioError:
        raise
    except (ValueError, RecursionError) as error:  # of Unicode, of numbers with too many digits, of lists in lists
        raise ScenarioError(f"{path} is not valid TOML: {error}") from None


def _parsed(key: str, given: Any) -> Any:
    """A flag's text as the values of its key. What is no number stays text, for the validation to name."""
    if not isinstance(given, str) or key not in (*_NAMES, *_NUMBERS, *_SINGLE_NUMBERS):
        return given
    if key in _SINGLE_NUMBERS:
        return _number(given)
    parts = split_list(given)
    if "" in parts:
        raise ScenarioError(f"`{key}` {given!r}: an item of the list is empty; write it as a,b,c")
    return tuple(_number(part) for part in parts) if key in _NUMBERS else parts


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _one_line(error: ValidationError, origin: Mapping[str, str]) -> str:
    """The first problem in one line; how many more there are."""
    problems = error.errors(include_url=False)
    first = next(
        (p for p in problems if p["type"] != "literal_error"), problems[0]
    )  # of a union's branches, the numeric one
    key = str(first["loc"][0])
    where = origin.get(key, origin.get("maps", key) if key == "methods" else key)  # none given: wrong beside no maps
    fields = sorted(Scenario.model_fields)
    if first["type"] == "extra_forbidden":
        file = where.removesuffix(f": {key}")
        return f"{file}: unknown key {key!r}{nearest(key, fields)}; allowed: {', '.join(fields)}"
    if first["type"] == "missing":
        return f"{origin.get('', 'scenario')}: {key!r} is missing: write it there, or give `{key}`"
    message = re.sub(r"^(Value error, |Input should be )", "", first["msg"])
    if first["type"] == "value_error":
        return f"{where}: {message}"
    if key == "device":
        message = "cpu, cuda or cuda:N"
    dlogd = ", or 'dlogd'" if key == "num_projections" else ""
    if first["type"] == "too_short":
        return f"{where}: the list is empty; at least one value is needed"
    given = " ".join(shown(first["input"]).split())
    return f"{where}: {given} given, allowed: {message}{dlogd}"


def is_built(scenario: Scenario) -> bool:
    """Whether the validation has built the members; a scenario that was read back from a run has names only."""
    return all(isinstance(getattr(scenario, kind), Names) for kind in MEMBERS)


def override(scenario: Scenario, **changes: Any) -> Scenario:
    """The scenario with some keys changed, validated again."""
    keys, held = extract_arrays(changes)
    if not is_built(scenario):  # it was read back from a run
        _check_trusted(scenario.model_dump(exclude=set(keys)), "the manifest of the run")
    changed = validated(scenario.model_dump() | {"cluster": scenario.cluster} | keys, None, {**scenario.held, **held})
    changed._left_out = scenario.left_out
    return changed


def as_scenario(given: "Scenario | str | Mapping[str, Any] | None", keys: Mapping[str, Any] | None = None) -> Scenario:
    """A Scenario from itself, a name or path, or a mapping of keys on top of the default scenario; keys: changes."""
    if isinstance(given, Scenario):
        return override(given, **keys) if keys else given
    if given is None or isinstance(given, str):
        return load_scenario(given, keys)
    return load_scenario(None, {**given, **(keys or {})})
