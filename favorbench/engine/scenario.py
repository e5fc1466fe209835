"""Scenarios: a TOML file, flags and arrays in memory become one frozen, validated description of a study."""

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from favorbench.baselines import BASELINES, get_baseline, no_map
from favorbench.errors import ScenarioError
from favorbench.files import read_regular
from favorbench.formats import ALIASES, shown
from favorbench.inputs import (
    INPUTS,
    SHIPPED,
    Arrays,
    Fixed,
    InputSource,
    Layout,
    data_directory,
    get_input,
    reader_of,
)
from favorbench.maps import TRANSFORMS as MAP_TRANSFORMS
from favorbench.maps import get_map
from favorbench.methods import METHODS, PREFIXES, get_method
from favorbench.numerics.arrays import of_python
from favorbench.numerics.backend import DTYPES
from favorbench.registry import canonical, label, nearest, split_list
from favorbench.samplers import TRANSFORMS as SAMPLER_TRANSFORMS
from favorbench.samplers import get_sampler
from favorbench.users import check_trusted

#: Keys that name members, and the functions that build them.
MEMBERS: Mapping[str, Callable[..., Any]] = {
    "maps": get_map, "samplers": get_sampler, "methods": get_method, "baselines": get_baseline, "inputs": get_input,
}  # fmt: skip

ESTIMATORS = ("maps", "samplers", "methods", "baselines")

#: Names that may stand before a colon in a spec without being a module.
TRANSFORM_NAMES = {transform.prefix for transform in (*MAP_TRANSFORMS, *SAMPLER_TRANSFORMS, *PREFIXES)}

#: Keys whose flags are lists of names or of numbers with commas, and keys of one number.
_NAMES = ("maps", "samplers", "methods", "baselines", "inputs", "heads", "dtype")
_NUMBERS = ("num_projections", "seq_len", "head_dim", "scale")
_SINGLE_NUMBERS = ("value_scale", "query_rows", "trials", "seed")

#: Names of methods and baselines, which no map may have.
_RESERVED = {"method": {member.name for member in METHODS}, "baseline": {member.name for member in BASELINES}}

DEFAULT_SCENARIO = "quick"

ALL_ROWS, SOME_ROWS = 4096, 1024  # query rows on which the error is measured, unless a scenario says otherwise

#: Validation context of a scenario read back from a run: nothing is built, no user's module is imported.
NAMES_ONLY = {"names_only": True}

MAX_TEXT = 100_000  # characters of a list that is given as one text

CALIBRATION = "calibration"  # the name of arrays that maps are calibrated on

#: Inputs in memory, by name.
Held = Mapping[str, InputSource]


class Names(tuple[str, ...]):
    """Canonical names of a scenario's members, and the members, which the validation of the scenario has built."""

    members: tuple[Any, ...]

    @staticmethod
    def of(names: Iterable[str], members: Iterable[Any]) -> "Names":
        """Join names and their members."""
        result = Names(names)
        result.members = tuple(members)
        return result


def _as_tuple(value: Any) -> Any:
    """Make a tuple of one value, of a list, or of a text with commas, without repeated values."""
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise ScenarioError(f"a text of {len(value)} characters given, allowed: a list of at most {MAX_TEXT}")
        value = split_list(value)
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return tuple(dict.fromkeys(values)) if all(isinstance(v, str | int | float) for v in values) else values


def _or_none(value: Any) -> Any:
    """ "none" is an empty list, but an empty text is not."""
    alone = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    return () if isinstance(alone, str) and alone == "none" else value


_Several = BeforeValidator(_as_tuple)
_OrNone = BeforeValidator(_or_none)  # runs before _Several: the last validator runs first
_Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_Size = Annotated[int, Field(ge=1, le=1 << 20)] | Literal["dlogd"]
_Length = Annotated[int, Field(ge=1, le=1 << 24)]
_Dim = Annotated[int, Field(ge=1, le=4096)]
_Nonempty = Field(min_length=1)
_Item = TypeVar("_Item")
_List = Annotated[tuple[_Item, ...], _Several, _Nonempty]


class Scenario(BaseModel):
    """A study. Lists multiply: every map x sampler x R on every input x scale x L x d x dtype, trials times.

    Raises pydantic.ValidationError; ``load_scenario`` turns that into a ScenarioError of one line.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern=r"^[\w.-]{1,80}$")] = "scenario"
    title: str = ""
    maps: Annotated[tuple[str, ...], _Several, _OrNone]
    samplers: _List[str]
    methods: Annotated[tuple[str, ...], _Several, _OrNone, Field(validate_default=True)] = ()
    baselines: Annotated[tuple[str, ...], _Several, Field(validate_default=True)] = (
        "uniform", "taylor-1", "taylor-2", "best-rank"
    )  # fmt: skip
    num_projections: _List[_Size]
    layout: Layout = "heads,L,d"
    inputs: Annotated[_List[str], Field(validate_default=True)] = ("gaussian",)
    calibrate: str | None = None
    heads: _List[str] | None = None
    seq_len: _List[_Length] | None = None
    head_dim: _List[_Dim] | None = None
    scale: _List[_Positive] = (1.0,)
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
    cluster: Annotated[str | None, Field(exclude=True)] = None  # where to compute is not part of what is measured
    _held: Held = PrivateAttr(default_factory=dict)
    _left_out: tuple[str, ...] = PrivateAttr(())
    _overridden: dict[str, tuple[Any, ...]] = PrivateAttr(default_factory=dict)

    @property
    def held(self) -> Held:
        """Inputs in memory, by name."""
        return self._held

    @property
    def left_out(self) -> tuple[str, ...]:
        """Members of a shipped scenario that are not measured, as they cannot be causal."""
        return self._left_out

    @property
    def overridden(self) -> Mapping[str, tuple[Any, ...]]:
        """The L and d of a requested scenario that gave way to those of files."""
        return self._overridden

    @field_validator(*MEMBERS)
    @classmethod
    def _built(cls, specs: tuple[str, ...], info: Any) -> tuple[str, ...]:
        """Build every member, refuse two of the same name, and keep names in their canonical spelling."""
        key = info.field_name
        if info.context == NAMES_ONLY:
            return specs
        if key == "baselines" and "uniform" not in specs:
            specs = ("uniform", *specs)
        _check_kinds(key, specs, info.data.get("maps", True))
        members = [_built_member(key, spec, info) for spec in specs]
        labels = [spec if isinstance(m, Fixed) else label(m) for spec, m in zip(specs, members, strict=True)]
        places = [str(Path(name)) for name in labels] if key == "inputs" else labels  # "./a.npz" is "a.npz"
        check_labels(key, specs, places, info.data.get("maps"))
        return Names.of(labels if key == "inputs" else map(canonical, specs, members), members)

    @field_validator("calibrate")
    @classmethod
    def _is_input(cls, spec: str | None, info: Any) -> str | None:
        """Check that maps are calibrated on something that is an input."""
        if spec is not None and info.context != NAMES_ONLY:
            _built_member("inputs", spec, info)
        return spec

    def sizes(self, head_dim: int) -> tuple[int, ...]:
        """The values of R for a head_dim, increasing; "dlogd" is int(d ln d), at least 1."""
        rule = max(1, int(head_dim * math.log(head_dim)))
        return tuple(sorted({rule if size == "dlogd" else size for size in self.num_projections}))

    def rows(self, query_len: int) -> int:
        """The number of query rows on which the error is measured: by default all up to ALL_ROWS, then SOME_ROWS."""
        default = query_len if query_len <= ALL_ROWS else SOME_ROWS
        return min(query_len, default if self.query_rows is None else self.query_rows)


def _check_kinds(key: str, specs: Sequence[str], maps: object) -> None:
    """Raise ScenarioError for a method or baseline among maps, a baseline among methods, or neither map nor method."""
    if key == "methods" and not specs and not maps:
        raise ScenarioError("there is neither a map nor a method to measure: give `maps`, `methods` or both")
    for spec in specs:
        if key == "maps" and (other := no_map(spec)):
            name, kind = other
            right = "baselines" if kind == "baseline" else "methods"
            raise ScenarioError(f"{name!r} is a {kind}, not a map: write `{right}` {spec}")
        if key == "methods" and spec in _RESERVED["baseline"]:
            raise ScenarioError(f"{spec!r} is a baseline, not a method: write `baselines` {spec}")


def _built_member(key: str, spec: str, info: Any) -> Any:
    """The member of this name; inputs in memory are in the context of the validation."""
    if key != "inputs":
        return MEMBERS[key](spec)
    held = (info.context or {}).get("held", {})
    return held[spec] if spec in held else MEMBERS[key](spec, info.data.get("layout", "heads,L,d"))


def check_labels(key: str, specs: Sequence[str], labels: Sequence[str], maps: Iterable[str] | None) -> None:
    """Raise ScenarioError if a member has the name of another, or of another kind: their rows would be mixed."""
    taken: dict[str, str] = {}
    if key in ("maps", "methods"):
        taken = dict.fromkeys(_RESERVED["baseline"], "baseline")
        taken |= dict.fromkeys(_RESERVED["method"], "method") if key == "maps" else dict.fromkeys(maps or (), "map")
    for name in labels:
        if name in taken:
            raise ScenarioError(f"a {key[:-1]} may not be called {name!r}: that is the name of a {taken[name]}")
    check_distinct(specs, labels)


def check_distinct(specs: Sequence[str], labels: Sequence[str]) -> None:
    """Raise ScenarioError for two members of one name."""
    for i, name in enumerate(labels):
        if name in labels[:i]:
            raise ScenarioError(f"{specs[i]!r} and {specs[labels.index(name)]!r} are both called {name!r}")


def shipped_scenarios() -> dict[str, Path]:
    """The scenarios that come with favorbench, by name."""
    return {path.stem: path for path in sorted(data_directory().glob("*.toml"))}


def load_scenario(source: str | None = None, flags: Mapping[str, Any] | None = None) -> Scenario:
    """Load a scenario from a file or by its shipped name, with flags on top.

    Parameters
    ----------
    source
        A path to a .toml file, or the name of a shipped scenario; by default "quick".
    flags
        Keys and values. Lists may be strings with commas. None means that the flag was not given.

    Returns
    -------
    Scenario
        The validated scenario.

    Raises
    ------
    ScenarioError
        A key or value is wrong. The message has the file or flag, the value, what is allowed and the nearest name.
    InputError
        Arrays among the flags cannot be measured.

    Examples
    --------
    >>> import favorbench as fb
    >>> scenario = fb.load_scenario("quick", {"maps": "positive,oprf", "trials": 5})
    >>> scenario.maps, scenario.trials
    (('positive', 'oprf'), 5)
    """
    path = _find(source or DEFAULT_SCENARIO)
    flags, held = extract_arrays(flags or {})
    given = {key: _parsed(key, value) for key, value in flags.items() if value is not None}
    values, origin = _below(given, path)
    origin |= {key: f"`{key}`" for key in given}
    return _resolved(values, given, origin, held, path in shipped_scenarios().values())


def _resolved(
    values: dict[str, Any], given: dict[str, Any], origin: Mapping[str, str], held: Held, shipped: bool = False
) -> Scenario:
    """The scenario of values and of those given on top. L, d and the mask are those of files, if any are given.

    shipped: whether the values are those of a shipped scenario.
    """
    replaced = {}
    names = [name for name in _as_tuple(given.get("inputs")) if isinstance(name, str)]
    if any(name in SHIPPED or name in held or reader_of(name) for name in names):
        # The L and d of a file replace those meant for other inputs.
        replaced = {key: _as_tuple(values.pop(key)) for key in ("seq_len", "head_dim") if values.get(key) is not None}
    scenario = validated(values | given, origin, held)
    scenario._overridden = {key: replaced[key] for key in replaced if key not in given}
    laws = cast(Names, scenario.inputs).members
    if "causal" not in values | given and all(isinstance(law, Fixed) and law.causal for law in laws):
        scenario = scenario.model_copy(update={"causal": True})
        scenario.model_fields_set.discard("causal")  # other inputs may have another mask
    return _leave_out_noncausal(scenario, given, shipped) if scenario.causal else scenario


def _below(given: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a file that stand below those given, and where each comes from."""
    content = _read_toml(path)
    for short, full in ALIASES.items():
        if short in content and full in content:
            raise ScenarioError(f"{path}: {short!r} and {full!r} are the same key; give one of them")
    values: dict[str, Any] = {"name": path.stem} | {ALIASES.get(key, key): value for key, value in content.items()}
    origin = {"": str(path)} | {ALIASES.get(key, key): f"{path}: {key}" for key in content}
    _check_trusted({key: value for key, value in values.items() if key not in given}, path)
    if _changes(given, values):
        values["title"] = f"{path.stem}, changed by flags"
    return values, origin


def _check_trusted(values: Mapping[str, Any], file: str | Path) -> None:
    """Raise ScenarioError if a file names estimators of modules that it may not import."""
    for key in ESTIMATORS:
        specs = values.get(key)
        texts = specs if isinstance(specs, list | tuple) else [specs]
        check_trusted((text for text in texts if isinstance(text, str)), file, TRANSFORM_NAMES)


def _leave_out_noncausal(scenario: Scenario, given: Mapping[str, Any], shipped: bool) -> Scenario:
    """Leave out members that cannot be causal, unless a flag names them.

    These are baselines, and members of a shipped scenario if others are left.
    """
    changes, left_out = {}, []
    for key in ("baselines", "maps", "methods") if shipped else ("baselines",):
        names = cast(Names, getattr(scenario, key))
        kept = [(name, member) for name, member in zip(names, names.members, strict=True) if member.causal_safe]
        if key not in given and kept and len(kept) < len(names):
            changes[key] = Names.of(*zip(*kept, strict=True))
            left_out += [name for name in names if name not in changes[key] and key != "baselines"]
    copied = scenario.model_copy(update=changes)
    copied._left_out = tuple(left_out)
    return copied


def _changes(given: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether the keys given change what is measured."""
    return any(key != "cluster" and not _same(value, values.get(key)) for key, value in given.items())


def _same(first: Any, second: Any) -> bool:
    """Whether two values of a key mean the same. Values that no key takes, such as arrays, are left to validation."""
    first, second = _as_tuple(first), _as_tuple(second)
    return all(isinstance(value, str | int | float) for value in (*first, *second)) and first == second


def validated(values: Mapping[str, Any], origin: Mapping[str, str] | None = None, held: Held | None = None) -> Scenario:
    """Validate keys and values. Raises ScenarioError with one line that names the origin of the bad key."""
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
    if path.suffix.lower() in (".npz", ".npy", ".safetensors"):
        raise ScenarioError(f"{shown(source)} is a file of arrays, not a scenario: give it as `inputs`")
    if path.suffix == ".toml" or path.exists():
        return path
    raise ScenarioError(
        f"unknown scenario {source!r}{nearest(source, shipped)}; allowed: {', '.join(shipped)}, "
        "or a path to a .toml file"
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(path, "scenario", ScenarioError).decode("utf-8-sig"))
    except ScenarioError:
        raise
    except (ValueError, RecursionError) as error:  # of Unicode, of numbers with too many digits, of lists in lists
        raise ScenarioError(f"{path} is not valid TOML: {error}") from None


def _parsed(key: str, given: Any) -> Any:
    """Parse the text of a flag. A part that is not a number stays text, which validation refuses."""
    if key in (*_NUMBERS, *_SINGLE_NUMBERS):
        given = of_python(given)
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
    """The first problem in one line."""
    problems = error.errors(include_url=False)
    # An unknown key may be the missing one, mistyped; "literal_error" is the other branch of a union with numbers.
    first = min(problems, key=lambda p: (p["type"] != "extra_forbidden", p["type"] == "literal_error"))
    key = str(first["loc"][0])
    where = origin.get(key, origin.get("maps", key) if key == "methods" else key)  # no methods and no maps
    fields = sorted(Scenario.model_fields)
    if first["type"] == "extra_forbidden":
        file = where.removesuffix(f": {key}")
        return f"{file}: unknown key {shown(key)}{nearest(key, fields)}; allowed: {', '.join(fields)}"
    if first["type"] == "missing":
        return f"{origin.get('', 'scenario')}: {key!r} is missing: write it there, or give `{key}`"
    message = re.sub(r"^(Value error, |Input should be )", "", first["msg"])
    if first["type"] == "value_error":
        return f"{where}: {message}"
    if key == "device":
        message = "cpu, cuda or cuda:N"
    if key in ("maps", "methods", "samplers"):
        message = "names, in a list or with commas, such as 'module:object'"
    dlogd = ", or 'dlogd'" if key == "num_projections" else ""
    if first["type"] == "too_short":
        return f"{where}: the list is empty; at least one value is needed"
    given = " ".join(shown(first["input"]).split())
    return f"{where}: {given} given, allowed: {message}{dlogd}"


def is_built(scenario: Scenario) -> bool:
    """Whether the members are built; a scenario that was read back from a run has names only."""
    return all(isinstance(getattr(scenario, kind), Names) for kind in MEMBERS)


def override(scenario: Scenario, **changes: Any) -> Scenario:
    """Change some keys of a scenario, and validate it again."""
    keys, held = extract_arrays(changes)
    if not is_built(scenario):  # read back from a run
        _check_trusted(scenario.model_dump(exclude=set(keys)), "the manifest of the run")
    values = scenario.model_dump() | {"cluster": scenario.cluster}
    if "inputs" in keys and "causal" not in scenario.model_fields_set:
        del values["causal"]
    changed = _resolved(values, keys, {}, {**scenario.held, **held})
    changed._left_out = scenario.left_out
    return changed


def as_scenario(
    given: "Scenario | str | Path | Mapping[str, Any] | None", keys: Mapping[str, Any] | None = None
) -> Scenario:
    """Make a Scenario of a Scenario, a name, a path, or a mapping on top of the default one, changed by ``keys``."""
    if isinstance(given, Scenario):
        parsed = {key: _parsed(key, value) for key, value in (keys or {}).items()}
        if _changes(parsed, dict(given)):
            parsed = {"title": f"{given.name}, changed by flags"} | parsed
        return override(given, **parsed) if parsed else given
    if given is None or isinstance(given, str | Path):
        return load_scenario(given and str(given), keys)
    return load_scenario(None, {**given, **(keys or {})})


def extract_arrays(flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, InputSource]]:
    """Replace arrays among the keys of a scenario by names; return the keys, and the inputs by these names.

    inputs may be arrays (q, k, v), called "arrays", or a mapping of names to such arrays; calibrate may be arrays.
    Raises ScenarioError for anything else, InputError for arrays that cannot be measured.
    """
    layout, keys, held = flags.get("layout") or "heads,L,d", dict(flags), {}
    inputs = flags.get("inputs")
    three = isinstance(inputs, tuple | list) and len(inputs) == 3 and all(map(_has_axes, inputs))
    if three or hasattr(inputs, "gradient_scales"):  # the result of fb.capture
        inputs = {"arrays": inputs}
    if isinstance(inputs, Mapping):
        for name, given in inputs.items():
            _check_array_name(name)
            held[name] = Arrays.of(name, given, layout)
        keys["inputs"] = tuple(held)
    calibrate = flags.get("calibrate")
    if calibrate is not None and not isinstance(calibrate, str):
        held[CALIBRATION] = Arrays.of(CALIBRATION, calibrate, layout)
        keys["calibrate"] = CALIBRATION
    return keys, held


def _has_axes(given: object) -> bool:
    return getattr(given, "ndim", 0) > 0 or (isinstance(given, Sequence) and not isinstance(given, str | bytes))


def _check_array_name(name: object) -> None:
    """Raise ScenarioError for a name that is taken, or that a list with commas could not hold."""
    taken = [*(law.name for law in INPUTS), *SHIPPED, CALIBRATION]
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,80}", name) or name in taken or reader_of(name):
        raise ScenarioError(
            f"`inputs`: arrays may not be called {shown(name)}; allowed: letters, digits, _ . and -, no file's "
            f"name, and none of {', '.join(taken)}"
        )
