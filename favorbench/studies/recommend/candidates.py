"""What may be recommended: the estimators that are tried, their sizes and costs, and what is left out undrawn."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from favorbench.baselines import BASELINES, get_baseline
from favorbench.engine.plan import Draw
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Estimator, Study
from favorbench.errors import ScenarioError
from favorbench.maps import get_map
from favorbench.methods import Method, Shape, get_method
from favorbench.methods.features import LinearAttention
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

    estimator: Estimator
    spec: str
    study: Study

    @property
    def together(self) -> bool:
        """Whether its sizes share work, so that one alone would have other last bits: all of them are measured.

        Our methods make each size by itself, except those through landmarks; nothing is known of a user's.
        """
        method = self.estimator.method
        inside = method.wrapped if isinstance(method, LinearAttention) else method
        ours = type(inside).__module__.startswith("favorbench.")
        return not ours or isinstance(method, LinearAttention | ThroughLandmarks)

    def settings(self, draw: Draw) -> list[Setting]:
        """One for each size."""
        kind, name, sampler = self.estimator.kind, self.estimator.name, self.estimator.sampler
        sizes = draw.sizes if self.estimator.method.every_size else (None,)
        return [Setting(kind, name, sampler, size, self.spec) for size in sizes]

    def cost(self, setting: Setting, shape: Shape) -> float:
        """Multiplications; inf where the estimator does not say."""
        work = self.estimator.method.multiplications(shape, setting.size or 1)
        return math.inf if work is None else work


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
    default_maps, default_methods = (
        given is None and other in (None, "none") for given, other in ((maps, methods), (methods, maps))
    )
    some_maps = MAPS if default_maps else _listed("maps", maps)
    some_methods = METHODS if default_methods else _listed("methods", methods)
    if not (some_maps or some_methods):
        raise ScenarioError("`maps` none, `methods` none: there is no candidate to try; leave one of them out")
    if oracle := next((spec for spec in (*some_maps, *some_methods) if is_oracle(spec)), None):
        raise ScenarioError(f"{oracle!r} looks at every pair of a query and a key: a bound, not a candidate")
    own = default_maps or default_methods
    named = {"maps": some_maps or TRIVIAL, "methods": tuple(spec for spec in some_methods if spec not in _USABLE)}
    source = load_scenario(None, {**keys, **({} if own else named)})  # which refuses what is unknown
    bare = Study.of(source)
    law = next(iter(bare.inputs.values())).law
    heads = law.heads(source.seq_len, source.head_dim)
    shapes = [bare.shape(head) for head in heads]
    of_maps = {spec: LinearAttention(get_map(spec)) for spec in some_maps}
    of_methods = {spec: _method(spec) for spec in some_methods}
    if own:
        all_rows = source.rows(heads[0].query_len) == heads[0].query_len
        of_maps, of_methods = (
            {spec: method for spec, method in some.items() if _allowed(method, shapes, all_rows)}
            for some in (of_maps, of_methods)
        )
    for spec, method in (of_maps | of_methods).items():
        if method.multiplications(shapes[0], 1) is None:
            raise ScenarioError(
                f"{spec!r} does not say what it costs, and candidates are tried in order of increasing cost: give it "
                "`multiplications(shape, size)`"
            )
    trivial = [spec for spec in TRIVIAL if all(_cheap(spec, shape) for shape in shapes)] or [TRIVIAL[0]]
    flags = dict(keys) | {
        "maps": [*trivial, *(spec for spec in of_maps if label(get_map(spec)) not in trivial)],
        "samplers": list(SAMPLERS if samplers is None else _listed("samplers", samplers)),
        "methods": [spec for spec in of_methods if spec not in _USABLE],
        "baselines": ["uniform", *(spec for spec in of_methods if spec in _USABLE and spec != "uniform")],
        "num_projections": list(_sizes(of_methods.values(), shapes, max_size)),
        "trials": max(1, min(TRIALS, 1_000_000 // len(heads))),
    }
    stem = source.inputs[0].replace("\\", "/").rpartition("/")[2].rpartition(".")[0] if law.fixed else ""
    name = "".join(c if c.isalnum() or c in "_.-" else "-" for c in stem or source.inputs[0])
    scenario = load_scenario(None, flags)
    return Study.of(scenario.model_copy(update={"name": f"recommend-{name}"[:80], "title": "candidates of recommend"}))


def _allowed(method: Method, shapes: Sequence[Shape], all_rows: bool) -> bool:
    """Whether a default candidate can be measured here."""
    placed = all(shape.n == shape.l for shape in shapes)
    if (shapes[0].causal and not method.causal_safe) or (method.needs_positions and not placed):
        return False
    if method.needs_all_rows and not all_rows:
        return False
    try:
        for shape in shapes:
            method.check((1,), shape)
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


def _cheap(spec: str, shape: Shape) -> bool:
    work = LinearAttention(get_map(spec)).multiplications(shape, 1)
    return work is not None and work <= exact_cost(shape)


def _sizes(members: Collection[Method], shapes: Sequence[Shape], max_size: int) -> tuple[int, ...]:
    """Powers of two from SMALLEST to max_size, below the number of keys, and such as every method has."""
    most = min([max_size, *(shape.l - 1 for shape in shapes)])
    most = max(1, min([most, *(member.largest_size(shape) for member in members for shape in shapes)]))
    powers = [1 << i for i in range(most.bit_length())]
    return tuple(size for size in powers if size >= SMALLEST) or (powers[-1],)


def families(study: Study) -> list[Family]:
    """Every estimator of a study, each with the study that measures it alone: its numbers are those of the whole one.

    What does not depend on the draw is kept once for all of them. Maps come one by one, under each sampler.
    """
    scenario = study.scenario
    specs = {
        label(member): spec
        for kind in ("baselines", "methods", "maps")
        for spec, member in zip(getattr(scenario, kind), getattr(study, kind), strict=True)
    }
    uniform = tuple(member for member in study.baselines if member.name == "uniform")
    order = {"baseline": 0, "map": 1, "method": 2}
    names = list(specs)
    found = []
    for one in sorted(study.estimators, key=lambda one: (order[one.kind], names.index(one.name))):
        method, changes = one.method, {"maps": (), "methods": (), "baselines": uniform}
        if isinstance(method, LinearAttention):
            changes |= {"maps": (method.wrapped,), "samplers": (method.law,) if one.sampler else study.samplers[:1]}
        elif one.kind == "method":
            changes["methods"] = (method,)
        elif method not in uniform:
            changes["baselines"] = (*uniform, method)
        found.append(Family(one, specs[one.name], dataclasses.replace(study, **changes)))
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
            method = family.estimator.method
            rank = method.num_features(setting.size or 1, shape.d) if isinstance(method, LinearAttention) else 0
            if rank in least_error and least_error[rank] > target:
                ranked += 1
                continue
            found.append((Candidate(setting, cost, method.random or not fixed), family))
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


def cheaper_from(method: Method, size: int, shape: Shape) -> int | None:
    """The length from which on an estimator multiplies less than exact attention; None where it never does, or
    does not say. As many queries as keys where there are as many here, else these queries and more keys."""

    def dearer(length: int) -> bool:
        longer = shape._replace(l=length, n=length if shape.n == shape.l else shape.n)
        work = method.multiplications(longer, size)
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
