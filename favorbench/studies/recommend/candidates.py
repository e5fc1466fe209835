"""The candidates of a recommendation: estimators, their sizes and their costs."""

import bisect
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.problem import exact_multiplications
from favorbench.baselines import BASELINES, get_baseline
from favorbench.engine.scenario import Scenario, check_distinct, load_scenario
from favorbench.engine.study import Estimator, Study
from favorbench.errors import ScenarioError
from favorbench.maps import get_map
from favorbench.methods import Method, Shape
from favorbench.methods.base import cost_of
from favorbench.methods.features import LinearAttention, name_of, sampler_of
from favorbench.methods.landmarks import ThroughLandmarks
from favorbench.models.replacements import method_or_baseline
from favorbench.registry import canonical, is_ours, label, split_list
from favorbench.results.summary import is_oracle
from favorbench.samplers import get_sampler

#: Trivial answers, always among the candidates. For fixed inputs they are deterministic, and need no statistical test.
TRIVIAL = ("taylor(order=1)", "taylor", "taylor(order=3)")

#: The default candidates: each has the lowest error at its cost on some head of an encoder or a language model, or on
#: Gaussian inputs.
MAPS = ("positive", "aderf-sderf", "centre:aderf-sderf")
SAMPLERS = ("orthogonal",)
METHODS = (
    "sampled-keys", "clusters", "multipole", "multipole(lloyd=3)", "sinks(4):clusters", "sinks(4):multipole(lloyd=3)",
    "sinks(4):window(32):multipole", "sinks(4):window(32):multipole(lloyd=3)", "nystrom", "wildcat", "nystromformer",
    "monarch",
)  # fmt: skip

_Names = Mapping[str, tuple[str, ...]]
_DEFAULTS: _Names = {"maps": MAPS, "samplers": SAMPLERS, "methods": METHODS}

#: The defaults for a whole model: few, because a draw is a forward pass, and good on real models.
_MODEL_DEFAULTS: _Names = {
    "maps": ("positive",),
    "samplers": SAMPLERS,
    "methods": ("sinks(4):multipole", "sinks(4):clusters"),
}

MIN_SIZE = 16  # smallest size that is tried, if there are more keys

TRIALS = 100_000  # planned draws of a head; a search makes a few hundred of them

STEPS = 4096  # lengths beyond the first cheaper one: steps of the cost come with every block or chunk of keys

_USABLE_BASELINES = {member.name for member in BASELINES if not member.oracle}

#: The kind of a setting that differs between heads.
PER_HEAD = "per head"

#: Identifies the row of a setting among the rows of a draw: kind, name, sampler, size.
Key = tuple[str, str, str | None, int | None]


class EstimatorSetting(NamedTuple):
    """An estimator at a size, named as in rows. sampler (None without a choice, as size) and spec: as in a scenario."""

    kind: str
    name: str
    sampler: str | None
    size: int | None
    spec: str

    @property
    def key(self) -> Key:
        """The key of its row."""
        sampler = self.sampler and label(get_sampler(self.sampler))
        return self.kind, self.name, sampler, self.size

    @property
    def estimator(self) -> str:
        """Name and sampler."""
        return self.name if self.sampler is None else f"{self.name} / {self.sampler}"

    @property
    def text(self) -> str:
        """Name, sampler and size."""
        return self.estimator if self.size is None else f"{self.estimator}, size {self.size}"


def settings_of(
    kind: str, method: Method, spec: str, sizes: Sequence[int], law: str | None = None
) -> list[EstimatorSetting]:
    """One setting of an estimator for each size. law: the spec of its sampler, where that is not its label."""
    shown = sizes if method.every_size else (None,)
    sampler = sampler_of(method) and (law or sampler_of(method))
    return [EstimatorSetting(kind, name_of(method), sampler, size, spec) for size in shown]


class Family(NamedTuple):
    """One estimator at all of its sizes. study: a study of this estimator alone, on the same random streams.

    law: the spec of its sampler, None without a choice.
    """

    estimator: Estimator
    spec: str
    study: Study
    law: str | None

    @property
    def shares_work(self) -> bool:
        """Whether all sizes must be measured together, because the last bits of each depend on the others.

        Built-in methods compute sizes separately, except landmark methods. A user's method may share work.
        """
        method = self.estimator.method
        return not is_ours(method) or isinstance(method, LinearAttention | ThroughLandmarks)

    def cost(self, setting: EstimatorSetting, shape: Shape) -> float:
        """Multiplications; inf where the estimator does not declare them."""
        work = cost_of(self.estimator.method, shape, setting.size or 1)
        return math.inf if work is None else work

    def rank(self, setting: EstimatorSetting, shape: Shape) -> int:
        """The largest rank that the output of a map can have; 0 for methods, whose rank is unknown."""
        method = self.estimator.method
        return method.num_features(setting.size or 1, shape.d) if isinstance(method, LinearAttention) else 0


def study_of(
    keys: Mapping[str, Any], maps: str | None, methods: str | None, samplers: str | None, max_size: int
) -> Study:
    """Build the study of all candidates. keys: other keys of a scenario, as the flags of a sweep have them.

    maps, methods: lists with commas, or "none". If neither names a candidate, the defaults that suit the inputs are
    tried. Raises ScenarioError for an empty list, an oracle, and whatever a sweep refuses.
    """
    default, map_specs, method_specs = _specs(maps, methods, _DEFAULTS)
    named = {} if default else {"maps": map_specs or TRIVIAL, "methods": _split_baselines(method_specs)[0]}
    base = Study.of(load_scenario(None, {**keys, **named}))  # refuses unknown names
    _check_single(base.scenario)
    law = next(iter(base.inputs.values())).law
    heads = law.heads(base.scenario.seq_len, base.scenario.head_dim)
    shapes = [base.shape(head) for head in heads]
    members = {spec: _map(spec) for spec in map_specs}, {spec: method_or_baseline(spec) for spec in method_specs}
    if default:
        all_rows = base.scenario.rows(heads[0].query_len) == heads[0].query_len
        members = tuple(
            {spec: method for spec, method in part.items() if _can_run(method, shapes, all_rows)} for part in members
        )
    map_members, method_members = members
    for spec, method in (map_members | method_members).items():
        _check_cost(spec, method, shapes[0])
    trivial, (method_specs, baselines) = _trivial(shapes), _split_baselines(method_members)
    sizes = keys.get("num_projections")
    flags = dict(keys) | {
        "maps": [*trivial, *(spec for spec in map_members if label(get_map(spec)) not in trivial)],
        "samplers": _listed("samplers", samplers, True, _DEFAULTS),
        "methods": method_specs,
        "baselines": list(dict.fromkeys(["uniform", *baselines])),
        "num_projections": _sizes(method_members.values(), shapes, max_size) if sizes is None else sizes,
        "trials": max(1, min(TRIALS, 1_000_000 // len(heads))),
    }
    changes = {"name": _run_name(base.scenario.inputs[0], law.fixed), "title": "candidates of recommend"}
    return Study.of(load_scenario(None, flags).model_copy(update=changes))


def _check_single(scenario: Scenario) -> None:
    """Raise ScenarioError for several inputs, lengths, scales or types: an answer is about the heads of one input."""
    for name in ("inputs", "seq_len", "head_dim", "scale", "dtype"):
        if (count := len(getattr(scenario, name) or ())) > 1:
            raise ScenarioError(f"`{name}`: {count} {name} were given, allowed: one; run it for each separately")


def _run_name(inputs: str, is_file: bool) -> str:
    """The name of the run: "recommend-" and the input, a file without folders and ending."""
    stem = inputs.replace("\\", "/").rpartition("/")[2].rpartition(".")[0] if is_file else ""
    return ("recommend-" + re.sub(r"[^\w.-]", "-", stem or inputs))[:80]


def _specs(maps: str | None, methods: str | None, defaults: _Names) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
    """Whether the candidates are the default ones, and the specs of maps and methods."""
    default = {maps, methods} <= {None, "none"}
    map_specs, method_specs = _listed("maps", maps, default, defaults), _listed("methods", methods, default, defaults)
    if not map_specs and not method_specs:
        raise ScenarioError("`maps` none, `methods` none: there is no candidate to try; leave one of them out")
    for spec in (*map_specs, *method_specs):
        if is_oracle(spec):
            raise ScenarioError(f"{spec!r} looks at every pair of a query and a key: a bound, not a candidate")
    return default, map_specs, method_specs


def _check_cost(spec: str, method: Method, shape: Shape) -> None:
    if cost_of(method, shape, 1) is None:
        raise ScenarioError(
            f"{spec!r} does not declare its cost, and candidates are tried in order of increasing cost: give it "
            "`multiplications(shape, size)`"
        )


def _can_run(method: Method, shapes: Sequence[Shape], all_rows: bool) -> bool:
    """Whether a default candidate can be measured on these inputs."""
    try:
        for shape in shapes:
            method.check((1,), shape)
    except ScenarioError:  # more sinks than keys
        return False
    return (
        (method.causal_safe or not shapes[0].causal)
        and (all(shape.n == shape.l for shape in shapes) or not method.needs_positions)
        and (all_rows or not method.needs_all_rows)
    )


def _listed(key: str, given: str | None, default: bool, defaults: _Names) -> tuple[str, ...]:
    """Split a list with commas. Raises ScenarioError for an empty item."""
    if given is None and default:
        return defaults[key]
    names = () if given in (None, "none") else tuple(dict.fromkeys(split_list(given)))
    if not all(names):
        raise ScenarioError(f"`{key}` {given!r}: there is no candidate to try; write it as a,b,c, or leave it out")
    return names


def _split_baselines(specs: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split specs into methods and baselines."""
    kinds: tuple[list[str], list[str]] = [], []
    for spec in specs:
        kinds[spec in _USABLE_BASELINES].append(spec)
    return kinds


def _map(spec: str) -> Method:
    return LinearAttention(get_map(spec))


def _trivial(shapes: Sequence[Shape]) -> list[str]:
    """The trivial answers that cost no more than exact attention, at least the first."""

    def is_cheap(spec: str) -> bool:
        works = [(_map(spec).multiplications(shape, 1), exact_multiplications(shape)) for shape in shapes]
        return all(work is not None and work <= exact for work, exact in works)

    return list(filter(is_cheap, TRIVIAL)) or [TRIVIAL[0]]


def _sizes(members: Iterable[Method], shapes: Sequence[Shape], max_size: int) -> list[int]:
    """Powers of two from MIN_SIZE to max_size, below the number of keys, that every method supports."""
    most = min([max_size, *(shape.l - 1 for shape in shapes)])
    most = max(1, min([most, *(member.largest_size(shape) for member in members for shape in shapes)]))
    powers = [1 << i for i in range(most.bit_length())]
    return [size for size in powers if size >= MIN_SIZE] or powers[-1:]


def model_settings(
    shapes: Sequence[Shape], maps: str | None, methods: str | None, samplers: str | None, max_size: int,
    sizes: Sequence[int] = (),
) -> list[tuple[EstimatorSetting, Method]]:  # fmt: skip
    """The settings for a whole model whose heads have these shapes: uniform attention first; sizes 16, 24, 32, 48, ...

    sizes: replaces these; sizes that a method does not support are left out.

    Raises ScenarioError as ``study_of`` does, and for a named method that supports none of the sizes.
    """
    default, map_specs, method_specs = _specs(maps, methods, _MODEL_DEFAULTS)
    given = {name: get_sampler(name) for name in _listed("samplers", samplers, True, _MODEL_DEFAULTS)}
    check_distinct([*given], [label(law) for law in given.values()])
    laws = [canonical(name, law) for name, law in given.items()]
    members: list[tuple[str, str, Method]] = [("baseline", "uniform", get_baseline("uniform"))]
    members += [("map", spec, LinearAttention(get_map(spec), law)) for spec in map_specs for law in laws]
    members += [("method", spec, method_or_baseline(spec)) for spec in method_specs if spec != "uniform"]
    names = {spec: name_of(method) for _, spec, method in members}
    check_distinct([*names], [*names.values()])
    for _, spec, method in members:
        _check_cost(spec, method, shapes[0])
    settings: dict[Key, tuple[EstimatorSetting, Method]] = {}
    largest, untried = 0, list[Method]()
    for kind, spec, method in members:
        law = str(method.sampler) if isinstance(method, LinearAttention) else None
        if default and not _can_run(method, shapes, True):
            continue
        most = min(min(s.l - 1, method.largest_size(s)) for s in shapes)
        possible = [size for size in sizes if size <= most] if sizes else _finer_sizes(min(max_size, most))
        untried += [method] * (not possible and not default)
        largest = max(largest, most * method.every_size)
        settings |= {setting.key: (setting, method) for setting in settings_of(kind, method, spec, possible, law)}
    if largest and sizes and max(sizes) > largest:
        raise ScenarioError(f"`num_projections` {max(sizes)} given, allowed with these estimators: at most {largest}")
    for method in untried:  # what was named is tried, or refused
        for shape in shapes:
            method.check((min(sizes),), shape)
    return list(settings.values())


def _finer_sizes(most: int) -> list[int]:
    """16, 24, 32, 48, 64, 96, ... up to ``most``; ``most`` itself where it is smaller than all of them."""
    sizes = sorted(factor << power for factor in (2, 3) for power in range(3, 20) if factor << power <= most)
    return sizes or [max(1, most)]


def families(study: Study) -> list[Family]:
    """Split a study into one for each estimator: baselines first, then maps under each sampler, then methods.

    Results are those of the whole study. All share its cache of results that do not depend on the draw.
    """
    specs = {
        (kind, label(member)): spec
        for kind in ("baseline", "map", "method")
        for spec, member in zip(getattr(study.scenario, f"{kind}s"), getattr(study, f"{kind}s"), strict=True)
    }
    order = list(specs)
    laws = {label(law): spec for spec, law in zip(study.scenario.samplers, study.samplers, strict=True)}
    uniform = tuple(member for member in study.baselines if member.name == "uniform")
    result = []
    for estimator in sorted(study.estimators, key=lambda e: order.index((e.kind, e.name))):
        method, changes = estimator.method, {"maps": (), "methods": (), "baselines": uniform}
        if isinstance(method, LinearAttention):
            changes |= {
                "maps": (method.wrapped,),
                "samplers": (method.law,) if estimator.sampler else study.samplers[:1],
            }
        elif estimator.kind == "method":
            changes["methods"] = (method,)
        elif method not in uniform:
            changes["baselines"] = (*uniform, method)
        spec, law = specs[estimator.kind, estimator.name], laws.get(estimator.sampler or "")
        result.append(Family(estimator, spec, dataclasses.replace(study, **changes), law))
    return result


def least_errors(exact: np.ndarray, metric: str) -> dict[int, float]:
    """The least error of any matrix of rank R, for each R below full rank.

    The output of R features is a product of R columns with R rows, divided row by row, so its rank is at most R
    (Eckart & Young 1936). The best attention *matrix* of rank R gives no such bound: a worse matrix may have a better
    output.
    """
    squares = np.linalg.svd(exact, compute_uv=False) ** 2
    total = np.sum(squares)
    rest = np.maximum(total - np.cumsum(squares), 0.0)
    if metric not in ("relative_error", "mse") or not total:
        return {}
    errors = rest / exact.size if metric == "mse" else np.sqrt(rest / total)
    slack = 1.0 - 1e-6  # rounding, of singular values and of the error itself
    return {rank: slack * float(error) for rank, error in enumerate(errors[:-1], start=1)}


def cheaper_from(method: Method, size: int, shape: Shape) -> int | None:
    """The length from which an estimator takes fewer multiplications than exact attention; None if it never does.

    Queries grow with the keys if there are as many of both; otherwise only the keys grow. The cost of blocks and chunks
    has steps, behind which an estimator may be dearer again: lengths beyond the first cheaper one are tried one by one.
    """

    def is_cheaper(length: int) -> bool:
        longer = shape._replace(l=length, n=length if shape.n == shape.l else shape.n)
        work = method.multiplications(longer, size)
        return work is not None and work < exact_multiplications(longer)

    lengths = [1 << i for i in range(25)]
    if not is_cheaper(lengths[-1]):
        return None
    last = max((length for length in lengths if not is_cheaper(length)), default=0)
    first = last + 1 + bisect.bisect_left(range(last + 1, 2 * last), True, key=is_cheaper)
    further = range(min(8 * last, first + STEPS), first, -1)
    return 1 + next((length for length in further if not is_cheaper(length)), first - 1)
