"""Claims on cost: the multiplications of the matrix products that are done are at most those that are declared."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from favorbench.attention.linear import attention_estimates, linear_multiplications, sample_omega
from favorbench.attention.problem import SampledMap
from favorbench.maps import FeatureMap
from favorbench.methods import AttentionProblem, Method, Shape
from favorbench.methods.base import cost_of
from favorbench.methods.function import Function
from favorbench.numerics.streams import Streams, stream
from favorbench.registry import label
from favorbench.studies.verify.checks import NOT_COUNTED, MeasuredClaim

CLAIM = "multiplications"
#: A declared cost may leave out edges of blocks and tiles, and a matrix that is fitted once.
SLACK = 1.25
SIZE = 48
#: As many queries as keys, and fewer, for methods that allow it.
SHAPES = (Shape(768, 768, 16, 12), Shape(768, 768, 16, 12, causal=True), Shape(160, 1280, 8, 20))
#: For maps, causal too.
MAP_SHAPE, PROJECTIONS = Shape(400, 400, 16, 12), 32
#: Draws of the randomness of a map other than omega, which may decide its cost; and the standard errors allowed.
MAP_DRAWS, ERRORS = 50, 5.0


def of_method(method: Method, seed: int) -> MeasuredClaim:
    """Measure a method or baseline in the worst of some shapes."""
    shapes = [shape for shape in SHAPES if method.causal_safe or not shape.causal]
    shapes = [shape for shape in shapes if not method.needs_positions or shape.n == shape.l]
    sizes = {shape: min(SIZE, method.largest_size(shape)) for shape in shapes}

    def work(shape: Shape) -> float:
        rng = stream(seed, "verify", "cost", *shape)
        query, key, value = _tokens(rng, shape)
        problem = AttentionProblem(query, key, value, np.arange(0, shape.l, shape.l // shape.n), shape.causal)
        with counting() as done:
            list(method.estimates(problem, (sizes[shape],), Streams.of(rng)))
        # a function is called again with values of 1, for its row sums, and states what one call costs
        return done[0] / (2 if isinstance(method, Function) else 1)

    declared = [cost_of(method, _with_sums(shape), sizes[shape]) for shape in shapes]
    return _judged(label(method), declared, map(work, shapes))


def of_maps(maps: Sequence[FeatureMap], seed: int) -> list[MeasuredClaim]:
    """Measure each map in linear attention."""
    return [_of_map(feature_map, seed) for feature_map in maps]


def _of_map(feature_map: FeatureMap, seed: int) -> MeasuredClaim:
    size = 1 if feature_map.randomness == "none" else PROJECTIONS
    shapes = [MAP_SHAPE._replace(causal=causal) for causal in ((False, True) if feature_map.causal_safe else (False,))]

    def work(shape: Shape) -> float:
        rng, draws = stream(seed, "verify", "cost", *shape), []
        for _ in range(MAP_DRAWS if feature_map.draws_extra else 1):
            query, key, value = _tokens(rng, shape)
            sample = sample_omega("iid", size, shape.d, rng, map=feature_map)
            extra = counted(sample.extra) if isinstance(sample.extra, np.ndarray) else sample.extra
            problem = AttentionProblem.of(query, key, value, shape.causal)
            with counting() as done:
                list(attention_estimates(problem, counted(sample.omega), [SampledMap(feature_map, extra, (size,))]))
            draws.append(done[0])
        return float(np.mean(draws) - ERRORS * np.std(draws) / math.sqrt(len(draws)))

    declared = [linear_multiplications(feature_map, _with_sums(shape), size) for shape in shapes]
    return _judged(label(feature_map), declared, map(work, shapes))


def _tokens(rng: np.random.Generator, shape: Shape) -> list["Counted"]:
    lengths = ((shape.n, shape.d), (shape.l, shape.d), (shape.l, shape.d_v))
    return [counted(0.5 * rng.standard_normal(size)) for size in lengths]


def _with_sums(shape: Shape) -> Shape:
    """Sums of weights are a column of the values."""
    return shape._replace(d_v=shape.d_v + 1)


def _judged(subject: str, declared: Sequence[float | None], work: Iterable[float]) -> MeasuredClaim:
    """The largest ratio of the work done to the work declared, against the slack; undeclared, none is done."""
    if None in declared:
        return MeasuredClaim(subject, CLAIM, None, 0, "nothing declared: it does not say what it costs")
    done = list(work)
    if not any(done):
        detail = "no matrix product in NumPy of the arrays it was given"
        return MeasuredClaim(subject, CLAIM, None, 0, detail, otherwise=NOT_COUNTED)
    ratio = max(count / said if said else np.inf for count, said in zip(done, declared, strict=True))
    return MeasuredClaim(subject, CLAIM, ratio / SLACK, 0, f"does {ratio:.3g} times what it says")


_counts: list[list[float]] = []  # of those who count, the innermost last

#: Products over the last axis of the first array, and products of two matrices, whatever axes these are made of.
_LAST_AXIS = tuple(getattr(np, name) for name in ("matmul", "matvec", "vecmat") if hasattr(np, name))  # NumPy 2.2
_MATRICES = (np.dot, np.inner, np.outer, np.vdot, np.tensordot)


class Counted(np.ndarray):
    """A NumPy array whose matrix products with any array are counted while ``counting``: of @, dot, einsum and others.

    Products entry by entry are none of these, and a plain array made of it counts no more.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        plain, kept = (
            [np.asarray(a) if isinstance(a, Counted) else a for a in arrays] for arrays in (inputs, out or ())
        )
        result = getattr(ufunc, method)(*plain, **options, **({"out": tuple(kept)} if kept else {}))
        if ufunc in _LAST_AXIS and _counts:
            _counts[-1][0] += math.prod(result.shape) * plain[0].shape[-1]
        if out:
            return out[0] if len(out) == 1 else out
        return counted(result) if isinstance(result, np.ndarray) and result.ndim else result

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        before = _counts[-1][0] if _counts else 0.0
        result = super().__array_function__(function, types, inputs, options)
        if _counts and function in _MATRICES:  # (I, K) with (K, J) is IKJ, the root of the product of the three sizes
            _counts[-1][0] = before + math.sqrt(np.size(inputs[0]) * np.size(inputs[1]) * np.size(result))
        elif _counts and function is np.einsum and isinstance(inputs[0], str):
            _counts[-1][0] = before + _einsum_work(*inputs)
        return counted(result) if type(result) is np.ndarray else result

    def dot(self, other: Any, out: Any = None) -> Any:
        """As the function, which is counted."""
        return np.dot(self, other, out)


def counted(array: np.ndarray) -> Counted:
    """The same numbers, counted."""
    return np.asarray(array).view(Counted)


@contextmanager
def counting() -> Iterator[list[float]]:
    """A list of one number, the multiplications inside."""
    count = [0.0]
    _counts.append(count)
    try:
        yield count
    finally:
        _counts.pop()


def _einsum_work(subscripts: str, *operands: Any) -> float:
    """The product of the lengths of all axes, one multiplication fewer than there are operands; in one loop."""
    lengths: dict[str | int, int] = {}
    for term, operand in zip(subscripts.replace(" ", "").partition("->")[0].split(","), operands, strict=True):
        before, _, after = term.partition("...")
        hidden = np.ndim(operand) - len(before) - len(after)  # axes of the ellipsis, which broadcast from the last
        for name, length in zip([*before, *range(-hidden, 0), *after], np.shape(operand), strict=True):
            lengths[name] = max(lengths.get(name, 1), length)
    return float(math.prod(lengths.values()) * (len(operands) - 1))
