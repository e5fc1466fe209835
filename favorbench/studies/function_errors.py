"""The error of any attention function on real or random inputs, draw by draw."""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from favorbench.attention.exact import exact_attention
from favorbench.attention.problem import check_shapes
from favorbench.errors import EstimatorError, InputError, ScenarioError
from favorbench.formats import shown
from favorbench.inputs import Head, Inputs, get_input
from favorbench.metrics import METRICS, error_sums
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import stream
from favorbench.parameters import check_whole
from favorbench.registry import nearest
from favorbench.results.compare import COMPARABLE
from favorbench.statistics import median_interval
from favorbench.users import failures_named

#: A function of q, k, v, each (L, d), and of ``size`` and ``rng`` where it has parameters of these names.
AttentionFunction = Callable[..., Any]

#: The name of an input (minilm, gaussian, a path to a file), or arrays q, k, v: (L, d) or (heads, L, d).
InputSource = str | Path | Sequence[np.ndarray]

MOVES = 3  # of the inputs, by one unit in the last place, to see what rounding does to an error
MARGIN = 10.0  # times the largest change that these made: another machine rounds at every step, not only at the first


class HeadErrors(NamedTuple):
    """Errors of one head, draw by draw; two equal ones where nothing is random. rounding: what it may change them by.

    dtype: of the function's output.
    """

    errors: tuple[float, ...]
    rounding: float
    dtype: str


@dataclass(frozen=True)
class FunctionError:
    """The median over draws of the mean error over heads, with its interval; ``heads``: what it was made of."""

    value: float
    low: float
    high: float
    coverage: float
    draws: int
    heads: Mapping[str, HeadErrors]

    def __float__(self) -> float:
        return self.value


class Source(NamedTuple):
    """Inputs by head: what draws them, and what names them in streams and in what is stored."""

    key: str
    heads: tuple[Head, ...]
    draw: Callable[[np.random.Generator, Head], Inputs]
    fixed: bool


def function_error(
    function: AttentionFunction,
    inputs: InputSource = "minilm",
    metric: str = "relative_error",
    draws: int = 15,
    size: int = 64,
    seed: int = 0,
) -> FunctionError:
    """How far a function f(q, k, v) -> output, (L, d) to (L, d_v), is from exact attention.

    q, k, v are float64, as attention takes them. Where it has parameters ``size`` and ``rng`` it is given these, a
    generator that is the same for a draw whenever it is asked. Raises ScenarioError for a metric that is no error,
    numbers out of range, or a function with other parameters; InputError for arrays that do not fit; EstimatorError
    where the function fails or returns another shape.
    """
    if metric not in COMPARABLE:
        raise ScenarioError(
            f"metric: {shown(metric)} given{nearest(str(metric), COMPARABLE)}, allowed: {', '.join(COMPARABLE)}"
        )
    check_whole("draws", draws, 2, 10_000)
    check_whole("size", size, 1, 1 << 24)
    source, asked = source_of(inputs), _Asked(function, size)
    with one_core(), np.errstate(all="ignore"):
        heads = {head.label: _of_head(asked, source, head, metric, draws, seed) for head in source.heads}
    longest = max(len(one.errors) for one in heads.values())
    columns = [np.resize(one.errors, longest) for one in heads.values()]
    means = np.mean(columns, axis=0)
    low, high, coverage = median_interval(means)
    return FunctionError(float(np.median(means)), low, high, coverage if longest > 2 else 1.0, longest, heads)


def source_of(inputs: InputSource) -> Source:
    """Inputs by name, path or arrays. Raises ScenarioError and InputError."""
    if isinstance(inputs, str | Path):
        law = get_input(str(inputs))
        return Source(law.digest() or str(inputs), law.heads(None, None), law.draw, law.fixed)
    if not isinstance(inputs, Sequence) or len(inputs) != 3:
        raise InputError(f"inputs: {type(inputs).__name__} given; allowed: a name, a path, or arrays (q, k, v)")
    arrays = [np.array(a, dtype=np.float64) for a in inputs]
    for name, array in zip("qkv", arrays, strict=True):
        if array.ndim not in (2, 3) or array.size == 0 or not np.isfinite(array).all():
            raise InputError(f"inputs: {name} has shape {array.shape}; allowed: (L, d) or (heads, L, d), all finite")
    query, key, value = (a if a.ndim == 3 else a[None] for a in arrays)
    check_shapes(query, key, value, False)
    if not len(query) == len(key) == len(value):
        raise InputError(f"inputs: q, k and v have {len(query)}, {len(key)} and {len(value)} heads; they must be equal")
    shape = query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]
    heads = tuple(Head(f"h{i}", *shape) for i in range(len(query)))
    digest = hashlib.sha256(b"".join(a.tobytes() for a in (query, key, value))).hexdigest()

    def draw(rng: np.random.Generator, head: Head) -> Inputs:
        i = int(head.label[1:])
        return Inputs(query[i].copy(), key[i].copy(), value[i].copy())

    return Source(digest, heads, draw, fixed=True)


class _Asked:
    """A function, and how it is to be called."""

    def __init__(self, function: AttentionFunction, size: int) -> None:
        self.function, self.size = function, size
        self.name = getattr(function, "__name__", type(function).__name__)
        if not callable(function):
            raise ScenarioError(f"a {type(function).__name__} given; allowed: a function f(q, k, v) -> output")
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of C functions
            self.takes: tuple[str, ...] = ()
            return
        self.takes = tuple(name for name in ("size", "rng") if name in signature.parameters)
        try:
            signature.bind(None, None, None, **dict.fromkeys(self.takes))
        except TypeError:
            raise ScenarioError(
                f"{self.name}{signature} cannot be called with q, k, v; allowed: f(q, k, v) or f(q, k, v, size, rng)"
            ) from None

    def __call__(self, inputs: Inputs, rng: np.random.Generator) -> np.ndarray:
        """The output as it comes, checked."""
        given = {"size": self.size, "rng": rng}
        with failures_named(self.name):
            own = (a.copy() for a in inputs)  # a function may work in place
            output = np.asarray(self.function(*own, **{name: given[name] for name in self.takes}))
        wanted = (len(inputs.query), inputs.value.shape[-1])
        if output.shape != wanted or output.dtype.kind not in "fiu":
            raise EstimatorError(
                f"{self.name} returned {output.dtype} of shape {output.shape}; (L, d_v) = {wanted} was expected"
            )
        return output


def _of_head(asked: _Asked, source: Source, head: Head, metric: str, draws: int, seed: int) -> HeadErrors:
    errors: list[float] = []
    exact, dtype = np.zeros(0), "float64"

    def rng_of(i: int) -> np.random.Generator:
        return stream(seed, "function error", source.key, *head[:4], i)

    for i in range(draws):
        inputs = source.draw(stream(seed, "function error inputs", source.key, *head[:4], i), head)
        if i == 0 or not source.fixed:
            exact = exact_attention(*inputs)
        output = asked(inputs, rng_of(i))
        dtype = output.dtype.name if output.dtype.kind == "f" else "float64"
        errors.append(_error(output, exact, metric, inputs))
        if i == 1 and source.fixed and errors[0] == errors[1]:
            break  # nothing in it is random
    inputs = source.draw(stream(seed, "function error inputs", source.key, *head[:4], 0), head)
    return HeadErrors(tuple(errors), _rounding(asked, inputs, rng_of, metric, dtype), dtype)


def _rounding(
    asked: _Asked, inputs: Inputs, rng_of: Callable[[int], np.random.Generator], metric: str, dtype: str
) -> float:
    """How much the error of a draw may move by rounding alone: as it does where the inputs move by one last place.

    0 for a function that does not give the same answer for the same draw.
    """
    exact = exact_attention(*inputs)
    first, again = (_error(asked(inputs, rng_of(0)), exact, metric, inputs) for _ in range(2))
    if first != again or not np.isfinite(first):
        return 0.0
    largest = 0.0
    for moved in _moved(inputs, float(np.finfo(dtype).eps)):
        error = _error(asked(moved, rng_of(0)), exact_attention(*moved), metric, moved)
        largest = max(largest, abs(error - first))
    return MARGIN * largest if np.isfinite(largest) else 0.0


def _moved(inputs: Inputs, eps: float) -> Iterator[Inputs]:
    rng = stream(0, "last places")
    for _ in range(MOVES):
        yield Inputs(*(a * (1.0 + eps * rng.choice([-1.0, 1.0], a.shape)) for a in inputs))


def _error(output: np.ndarray, exact: np.ndarray, metric: str, inputs: Inputs) -> float:
    sums = error_sums(output, exact)
    return float(cast(float, METRICS[metric].compute(sums, sums)))
