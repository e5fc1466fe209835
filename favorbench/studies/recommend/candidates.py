"""What may be recommended: the estimators that are tried, their sizes and costs, and what is left out undrawn."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from favorbench.baselines import BASELINES, get_baseline
from favorbench.engine.plan import Draw
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Study
from favorbench.errors import ScenarioError
from favorbench.inputs import InputLaw
from favorbench.maps import FeatureMap, get_map
from favorbench.methods import Method, Shape, get_method
from favorbench.methods.nystrom import ThroughLandmarks
from favorbench.registry import label, split_list
from favorbench.results.summary import is_oracle
from favorbench.studies.recommend.search import Candidate, Setting

#: Trivial answers, always among the candidates; where inputs are fixed they are not random and take no confidence.
TRIVIAL = ("taylor(order=1)", "taylor", "taylor(order=3)")

#: What has the least error at its cost somewhere: on heads of encoders and of language models, and on Gaussian inputs.
MAPS = ("positive", "aderf-sderf", "centre:aderf-sderf")
SAMPLERS = ("orthogonal",)
METHODS = (
    "sampled-keys", "clusters", "multipole", "multipole(lloyd=3)", "sinks(4):clusters", "sinks(4):multipole(lloyd=3)",
    "sinks(4):window(32):multipole", "sinks(4):window(32):multipole(lloyd=3)", "nystrom", "wildcat", "nystromformer",
    "monarch",
)  # fmt: skip

SMALLEST = 16  # of the sizes, where there are 16 keys

TRIALS = 100_000  # draws of a head that a plan has; a search makes a few hundred of them

_USABLE = {member.name for member in BASELINES if not member.oracle}


class Family(NamedTuple):
    """One estimator at all of its sizes. study: the one that measures nothing else, on the same random streams."""

    kind: str
    member: FeatureMap | Method
    sampler: str | None
    spec: str
    study: Study

    @property
    def together(self) -> bool:
        """Whether its sizes share work, so that one alone would have other last bits: it is asked for all of them.

        Methods of ours make each size by itself, but for landmarks; of a user's nothing is known.
        """
        ours = type(self.member).__module__.startswith("favorbench.")
        return not ours or isinstance(self.member, FeatureMap | ThroughLandmarks)

    def settings(self, draw: Draw) -> list[Setting]:
        """One for each size."""
        name = label(self.member)
        sized = self.member.every_size if isinstance(self.member, Method) else self.member.randomness != "none"
        return [Setting(self.kind, name, self.sampler, size, self.spec) for size in (draw.sizes if sized else (None,))]

    def cost(self, setting: Setting, shape: Shape) -> float:
        """Multiplications; inf where the estimator does not say."""
        work = cost_of(self.member, shape, setting.size or 1)
        return math.inf if work is None else work

    def is_random(self, fixed: bool) -> bool:
        """Whether its error differs between draws. fixed: inputs, and rows that are measured, do not."""
        own = self.member.random if isinstance(self.member, Method) else self.member.randomness != "none"
        return own or not fixed


def cost_of(member: FeatureMap | Method, shape: Shape, size: int) -> float | None:
    """Multiplications of an estimator at a size; None where it does not say."""
    if isinstance(member, Method):
        return member.multiplications(shape, size)
    return member.multiplications(shape.n, shape.l, shape.d, shape.d_v, size)


def exact_cost(shape: Shape) -> float:
    """Multiplications of exact attention: d + d_v for each pair of a query and a key that it sees."""
    pairs = shape.n * (shape.n + 1) / 2 if shape.causal else shape.n * shape.l
    return float(pairs * (shape.d + shape.d_v))


def study_of(
    keys: Mapping[str, Any], maps: str | None, methods: str | None, samplers: str | None, max_size: int
) -> Study:
    """The study of all candidates. keys: other keys of a scenario, as the flags of a sweep have them.

    maps, methods: lists with commas, or "none"; where one names some the other is empty, and where neither does, the
    default ones that these inputs allow. Raises ScenarioError for an empty list, an oracle, and what a sweep refuses.
    """
    some_maps = MAPS if maps is None and methods in (None, "none") else _listed("maps", maps)
    some_methods = METHODS if methods is None and maps in (None, "none") else _listed("methods", methods)
    if not (some_maps or some_methods):
        raise ScenarioError("`maps` none, `methods` none: there is no candidate to try; leave one of them out")
    own = some_maps is MAPS or some_methods is METHODS
    for spec in (*some_maps, *some_methods):
        if is_oracle(spec):
            raise ScenarioError(f"{spec!r} looks at every pair of a query and a key: a bound, not a candidate")
    named = {"maps": some_maps or TRIVIAL, "methods": tuple(spec for spec in some_methods if spec not in _USABLE)}
    source = load_scenario(None, {**keys, **({} if own else named)})  # which refuses what is unknown
    bare = Study.of(source)
    law = next(iter(bare.inputs.values())).law
    heads = law.heads(source.seq_len, source.head_dim)
    shapes = [bare.shape(head) for head in heads]
    if own:
        all_rows = source.rows(heads[0].query_len) == heads[0].query_len
        some_maps = tuple(spec for spec in some_maps if _allowed(get_map(spec), shapes, all_rows))
        some_methods = tuple(spec for spec in some_methods if _allowed(_method(spec), shapes, all_rows))
    members = [_method(spec) for spec in some_methods]
    for spec, member in zip((*some_maps, *some_methods), (*map(get_map, some_maps), *members), strict=True):
        if cost_of(member, shapes[0], 1) is None:
            raise ScenarioError(
                f"{spec!r} does not say what it costs, and candidates are tried from the cheapest to the dearest: give "
                "it `multiplications(shape, size)`"
            )
    trivial = [spec for spec in TRIVIAL if all(_cheap(get_map(spec), shape) for shape in shapes)] or [TRIVIAL[0]]
    flags = dict(keys) | {
        "maps": [*trivial, *(spec for spec in some_maps if label(get_map(spec)) not in trivial)],
        "samplers": list(_listed("samplers", samplers)) if samplers is not None else list(SAMPLERS),
        "methods": [spec for spec in some_methods if spec not in _USABLE],
        "baselines": ["uniform", *(spec for spec in some_methods if spec in _USABLE and spec != "uniform")],
        "num_projections": list(_sizes(members, shapes, max_size)),
        "trials": max(1, min(TRIALS, 1_000_000 // len(heads))),
    }
    scenario = load_scenario(None, flags)
    name = "".join(c if c.isalnum() or c in "_.-" else "-" for c in _stem(law, source.inputs[0]))
    return Study.of(scenario.model_copy(update={"name": f"recommend-{name}"[:80], "title": "candidates of recommend"}))


def _allowed(member: FeatureMap | Method, shapes: Sequence[Shape], all_rows: bool) -> bool:
    """Whether a default candidate can be asked here."""
    if shapes[0].causal and not member.causal_safe:
        return False
    if isinstance(member, FeatureMap):
        return True
    placed = all(shape.n == shape.l for shape in shapes)
    if (member.needs_positions and not placed) or (member.needs_all_rows and not all_rows):
        return False
    try:
        for shape in shapes:
            member.check((1,), shape)
    except ScenarioError:  # more sinks than keys
        return False
    return True


def _listed(key: str, given: str | None) -> tuple[str, ...]:
    """The names of a list with commas. Raises ScenarioError for an empty one."""
    if given is None or given == "none":
        return ()
    names = tuple(dict.fromkeys(split_list(given)))
    if not all(names):
        raise ScenarioError(f"`{key}` {given!r}: there is no candidate to try; write it as a,b,c, or leave it out")
    return names


def _method(spec: str) -> Method:
    """A method, or a baseline that one could use."""
    found = next((member for member in BASELINES if member.name == spec.partition("(")[0].strip()), None)
    return get_method(spec) if found is None else get_baseline(spec)


def _cheap(member: FeatureMap, shape: Shape) -> bool:
    work = cost_of(member, shape, 1)
    return work is not None and work <= exact_cost(shape)


def _sizes(members: Sequence[Method], shapes: Sequence[Shape], max_size: int) -> tuple[int, ...]:
    """Powers of two from SMALLEST to max_size, below the number of keys, and such as every method has."""
    most = min([max_size, *(shape.l - 1 for shape in shapes)])
    most = max(1, min([most, *(member.largest_size(shape) for member in members for shape in shapes)]))
    powers = [1 << i for i in range(most.bit_length())]
    return tuple(size for size in powers if size >= SMALLEST) or (powers[-1],)


def _stem(law: InputLaw, spec: str) -> str:
    return spec.replace("\\", "/").rpartition("/")[2].rpartition(".")[0] or spec if law.fixed else spec


def families(study: Study) -> list[Family]:
    """Every estimator of a study, each with the study that measures it alone: its numbers are those of the whole one.

    What does not depend on the draw is kept once for all of them.
    """
    scenario, found = study.scenario, []
    uniform = [member for member in study.baselines if member.name == "uniform"]

    def alone(**members: Any) -> Study:
        none = {"maps": (), "methods": (), "baselines": tuple(uniform)}
        return dataclasses.replace(study, **none | members)

    for spec, member in zip(scenario.baselines, study.baselines, strict=True):
        own = () if member in uniform else (member,)
        found.append(Family("baseline", member, None, spec, alone(baselines=(*uniform, *own))))
    for spec, member in zip(scenario.maps, study.maps, strict=True):
        under = study.samplers if member.randomness == "omega" else study.samplers[:1]
        for sampler in under:
            name = label(sampler) if member.randomness == "omega" else None
            found.append(Family("map", member, name, spec, alone(maps=(member,), samplers=(sampler,))))
    for spec, member in zip(scenario.methods, study.methods, strict=True):
        found.append(Family("method", member, None, spec, alone(methods=(member,))))
    return found


class Pool(NamedTuple):
    """The candidates of one head; and how many settings are left out because they cost more than exact attention, and
    because the rank of their output keeps their error above the target."""

    candidates: list[tuple[Candidate, Family]]
    dearer: int
    rank: int


def pool(
    of: Sequence[Family], draw: Draw, fixed: bool, most_cost: float, least_error: Mapping[int, float], target: float
) -> Pool:
    """Without a draw, so at no confidence: every setting but those that cannot be the answer.

    most_cost: what candidates cost less than. least_error: that an output of such a rank has. Closed forms leave
    nothing out: the second moment of a kernel estimate sits in draws that nobody makes. ``positive`` with 256
    projections has a relative standard deviation of 31 on the pairs of minilm L0H1, and there an output error of 0.58.
    """
    found, dearer, ranked = [], 0, 0
    shape = of[0].study.shape(draw.head)
    for family in of:
        for setting in family.settings(draw):
            cost = family.cost(setting, shape)
            if cost >= most_cost:
                dearer += 1
                continue
            if isinstance(family.member, FeatureMap):
                features = family.member.num_features(setting.size or 1, shape.d)
                if least_error.get(features, 0.0) > target:
                    ranked += 1
                    continue
            found.append((Candidate(setting, cost, family.is_random(fixed)), family))
    return Pool(found, dearer, ranked)


def least_errors(exact: np.ndarray, metric: str) -> dict[int, float]:
    """The error that every matrix of rank R has at least, for each R below full rank.

    The output of R features is a product of R columns with R rows, divided row by row: of rank R at most (Eckart &
    Young 1936). The best *matrix* of rank R says nothing of this kind: a worse one may have the better output.
    """
    squares = np.linalg.svd(exact, compute_uv=False) ** 2
    if not np.sum(squares):
        return {}
    left = np.maximum(np.sum(squares) - np.cumsum(squares), 0.0)
    if metric == "relative_error":
        errors = np.sqrt(left / np.sum(squares))
    elif metric == "mse":
        errors = left / exact.size
    else:
        return {}
    slack = 1.0 - 1e-6  # rounding, of singular values and of the error itself
    return {rank: slack * float(error) for rank, error in enumerate(errors[:-1], start=1)}


def cheaper_from(member: FeatureMap | Method, size: int, shape: Shape) -> int | None:
    """The length from which on an estimator multiplies less than exact attention; None where it never does, or
    does not say. As many queries as keys where there are as many here, else these queries and more keys."""

    def dearer(length: int) -> bool:
        longer = shape._replace(l=length, n=length if shape.n == shape.l else shape.n)
        work = cost_of(member, longer, size)
        return work is None or work >= exact_cost(longer)

    lengths = [1 << i for i in range(25)]
    if dearer(lengths[-1]):
        return None
    last = max((length for length in lengths if dearer(length)), default=0)
    low, high = last, 2 * last or 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if dearer(middle) else (low, middle)
    return high
