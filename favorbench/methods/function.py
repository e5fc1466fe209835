"""Any function as a method."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from favorbench.errors import EstimatorError, ScenarioError
from favorbench.methods.base import AttentionProblem, Estimate, Method, Shape, Sizes
from favorbench.numerics.arrays import Array, array_namespace
from favorbench.numerics.streams import Streams


@dataclass(frozen=True)
class Function(Method):
    """A function f(query, key, value, size, rng) -> output of NumPy or torch arrays: (n, d), (l, d), (l, d_v).

    It is called like attention, with unscaled queries and keys, and claims nothing. An attribute ``multiplications``, a
    function of shape and size, may state its cost. In a sweep and in a model it is called with NumPy arrays, unless its
    attribute ``tensors`` says that it takes torch tensors. Raises EstimatorError for an output that is not an (n, d_v)
    array. Infinite and NaN entries are a measurement: an infinite error.
    """

    reference = "a function of the user's"
    description = "f(query, key, value, size, rng) -> output"
    arrays = "single"
    permutation_invariant = False  # it claims nothing
    name: str = field(init=False, default="")  # pyright: ignore[reportIncompatibleVariableOverride]
    function: Callable[..., Any] = field(init=False, default=len, repr=False)

    @staticmethod
    def of(function: Callable[..., Any]) -> "Function":
        """Make the method that calls this function. Raises ScenarioError for another signature."""
        parameters = inspect.signature(function)
        try:
            parameters.bind(*range(5))
        except TypeError:
            wanted = f"def {function.__name__}(query, key, value, size, rng)"
            raise ScenarioError(f"write `{wanted}`, not `def {function.__name__}{parameters}`") from None
        made = Function()
        object.__setattr__(made, "name", function.__name__)
        object.__setattr__(made, "function", function)
        return made

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        (rng,), (query, key) = streams.generators, problem.unscaled()
        xp = array_namespace(query)
        before = rng.bit_generator.state
        for size in sizes:
            rng.bit_generator.state = before  # the draw for one size does not depend on another
            output = self._output(query, key, problem.value, size, rng)
            rng.bit_generator.state = before  # the row sums of the same draw: its output where every value is 1
            ones = self._output(query, key, xp.ones_like(problem.value), size, rng)
            yield Estimate(size, size, output, None, ones[..., :1])

    @property
    def tensors(self) -> bool:
        """Whether it takes torch tensors."""
        return bool(getattr(self.function, "tensors", False))

    def multiplications(self, shape: Shape, size: int) -> float | None:
        stated = getattr(self.function, "multiplications", None)
        return None if stated is None else float(stated(shape, size))

    def _output(self, query: Array, key: Array, value: Array, size: int, rng: np.random.Generator) -> Array:
        xp, shape = array_namespace(value), (query.shape[-2], value.shape[-1])
        # copies, for a function that works in place; times 1, which keeps a subclass of np.ndarray
        output = self.function(*(1 * a for a in (query, key, value)), size, rng)
        expected = np.ndarray if isinstance(value, np.ndarray) else type(value)
        is_array = type(output) in (expected, type(value))
        if not (is_array and tuple(output.shape) == shape and xp.isdtype(output.dtype, ("real floating", "integral"))):
            kind = type(output).__name__
            given = f"{kind} of shape {tuple(output.shape)} and {output.dtype}" if is_array else kind
            wanted = f"{expected.__name__} of shape {shape} and {value.dtype}"
            raise EstimatorError(f"{self.name} returned {given}; it must return {wanted}")
        return output
