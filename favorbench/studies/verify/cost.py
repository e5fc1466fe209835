"""Claims on cost: the multiplications of the matrix products that are done are at most those that are declared."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from favorbench.attention.linear import attention_estimates, linear_multiplications, sample_omega
from favorbench.attention.problem import SampledMap
from favorbench.maps import FeatureMap
from favorbench.methods import AttentionProblem, Method, Shape
from favorbench.methods.function import Function
from favorbench.numerics.streams import Streams, stream
from favorbench.registry import label
from favorbench.studies.verify.checks import NOT_COUNTED, Measurement
from favorbench.studies.verify.counted import counted, counting

CLAIM = "multiplications"
#: What a declared cost may leave out: edges of blocks and tiles, a matrix that is fitted once.
SLACK = 1.25
SIZE = 48
#: As many queries as keys, and fewer, for what answers there.
SHAPES = (Shape(768, 768, 16, 12), Shape(768, 768, 16, 12, causal=True), Shape(160, 1280, 8, 20))
#: Of a map, causal too.
MAP_SHAPE, PROJECTIONS = Shape(400, 400, 16, 12), 32
#: Of what a map draws beside omega, which may decide what it costs; and how many standard errors the mean may be above.
MAP_DRAWS, ERRORS = 50, 5.0


def of_method(method: Method, seed: int) -> Iterator[Measurement]:
    """Measure a method or baseline in the worst of some shapes."""
    shapes = [shape for shape in SHAPES if method.causal_safe or not shape.causal]
    shapes = [shape for shape in shapes if not method.needs_positions or shape.n == shape.l]
    cases = [(shape, min(SIZE, method.largest_size(shape))) for shape in shapes]
    declared = [method.multiplications(_with_sums(shape), size) for shape, size in cases]
    if None in declared:
        yield Measurement(label(method), CLAIM, None, 0, "nothing declared: it does not say what it costs")
    else:
        yield _judged(label(method), [_work_of_method(method, *case, seed) for case in cases], declared)


def _work_of_method(method: Method, shape: Shape, size: int, seed: int) -> float:
    rng = stream(seed, "verify", "cost", *shape)
    query, key, value = (counted(a) for a in _tokens(rng, shape))
    question = AttentionProblem(query, key, value, np.arange(0, shape.l, shape.l // shape.n), shape.causal)
    with counting() as work:
        list(method.estimates(question, (size,), Streams.of(rng)))
    # a function is called again with values of 1, for its row sums, and states what one call costs
    return work[0] / (2 if isinstance(method, Function) else 1)


def of_maps(maps: Sequence[FeatureMap], seed: int) -> list[Measurement]:
    """Of each map in linear attention."""
    return [_of_map(feature_map, seed) for feature_map in maps]


def _of_map(feature_map: FeatureMap, seed: int) -> Measurement:
    size = 1 if feature_map.randomness == "none" else PROJECTIONS
    shapes = [MAP_SHAPE._replace(causal=causal) for causal in ((False, True) if feature_map.causal_safe else (False,))]
    declared = [linear_multiplications(feature_map, _with_sums(shape), size) for shape in shapes]
    if None in declared:
        return Measurement(label(feature_map), CLAIM, None, 0, "nothing declared: it does not say what it costs")
    done = []
    for shape in shapes:
        rng = stream(seed, "verify", "cost", *shape)
        count = MAP_DRAWS if feature_map.draws_extra else 1
        draws = [_work_of_draw(feature_map, shape, size, rng) for _ in range(count)]
        done.append(float(np.mean(draws) - ERRORS * np.std(draws) / math.sqrt(count)))
    return _judged(label(feature_map), done, declared)


def _work_of_draw(feature_map: FeatureMap, shape: Shape, size: int, rng: np.random.Generator) -> float:
    query, key, value = (counted(a) for a in _tokens(rng, shape))
    sample = sample_omega("iid", size, shape.d, rng, map=feature_map)
    extra = counted(sample.extra) if isinstance(sample.extra, np.ndarray) else sample.extra
    estimator = SampledMap(feature_map, extra, (size,))
    with counting() as work:
        problem = AttentionProblem.of(query, key, value, shape.causal)
        list(attention_estimates(problem, counted(sample.omega), [estimator]))
    return work[0]


def _tokens(rng: np.random.Generator, shape: Shape) -> list[np.ndarray]:
    lengths = ((shape.n, shape.d), (shape.l, shape.d), (shape.l, shape.d_v))
    return [0.5 * rng.standard_normal(each) for each in lengths]


def _with_sums(shape: Shape) -> Shape:
    """Sums of weights are a column of the values."""
    return shape._replace(d_v=shape.d_v + 1)


def _judged(subject: str, done: Sequence[float], declared: Sequence[float | None]) -> Measurement:
    """The largest of work done over work declared, against the slack."""
    if not any(done):
        detail = "no matrix product of the arrays it was given"
        return Measurement(subject, CLAIM, None, 0, detail, otherwise=NOT_COUNTED)
    ratio = max(one / said if said else np.inf for one, said in zip(done, declared, strict=True))
    return Measurement(subject, CLAIM, ratio / SLACK, 0, f"does {ratio:.3g} times what it says")
