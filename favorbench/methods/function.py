"""Any function as a method, and any map as what is kept of the keys."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from favorbench.errors import EstimatorError
from favorbench.methods.base import Answer, Method, Question
from favorbench.numerics.arrays import Array, array_namespace
from favorbench.numerics.streams import Streams


@dataclass(frozen=True)
class Function(Method):
    """A function f(query, key, value, size, rng) -> output, of arrays of NumPy or torch: (n, d), (l, d), (l, d_v).

    It is asked as attention is, with queries and keys as they come, and claims nothing. Raises EstimatorError for an
    output that is no (n, d_v) array.
    """

    reference: ClassVar[str] = "a function of the user's"
    description: ClassVar[str] = "f(query, key, value, size, rng) -> output"
    arrays: ClassVar = "single"
    name: str = field(init=False, default="")  # pyright: ignore[reportIncompatibleVariableOverride]
    function: Callable[..., Any] = field(init=False, default=len, repr=False)

    @staticmethod
    def of(function: Callable[..., Any]) -> "Function":
        """The method that asks this function."""
        made = Function()
        object.__setattr__(made, "name", function.__name__)
        object.__setattr__(made, "function", function)
        return made

    def answers(self, question: Question, sizes: tuple[int, ...], streams: Streams) -> Iterator[Answer]:
        (rng,), d = streams.generators, question.query.shape[-1]
        query, key = question.query * d**0.25, question.key * d**0.25
        xp = array_namespace(query)
        for size in sizes:
            before = rng.bit_generator.state
            output = self._output(query, key, question.value, size, rng)
            rng.bit_generator.state = before  # the weights of the same draw: what comes out where every value is 1
            ones = self._output(query, key, xp.ones_like(question.value), size, rng)
            yield Answer(size, size, output, None, ones[..., :1])

    def _output(self, query: Array, key: Array, value: Array, size: int, rng: np.random.Generator) -> Array:
        output = self.function(query, key, value, size, rng)
        if type(output) is not type(value) or tuple(output.shape) != (query.shape[-2], value.shape[-1]):
            given = f"shape {tuple(output.shape)}" if hasattr(output, "shape") else type(output).__name__
            wanted = f"{type(value).__name__} of shape {(query.shape[-2], value.shape[-1])}"
            raise EstimatorError(f"{self.name} returned {given}; it must return a {wanted}")
        return output
