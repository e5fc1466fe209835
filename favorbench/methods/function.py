"""Any function as a method."""

import contextlib
import copy
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from favorbench.errors import EstimatorError, ScenarioError
from favorbench.methods.base import AttentionProblem, Estimate, Method, Shape, Sizes
from favorbench.numerics.arrays import Array, array_namespace, on_host, to_backend_of
from favorbench.numerics.backend import to_torch
from favorbench.numerics.machine import imported_torch
from favorbench.numerics.streams import Streams
from favorbench.users import failures_named, import_object, module_digest, stated_cost


class ArrayFunction:
    """A user's function of arrays. It is given copies, as NumPy arrays or as torch tensors, whichever it takes.

    An attribute ``tensors`` or annotations may say so, and a torch module takes tensors; otherwise a first call that
    fails is tried with the others.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        is_module = (torch := imported_torch()) is not None and isinstance(function, torch.nn.Module)
        self.tensors: bool | None = getattr(function, "tensors", True if is_module else None)
        with contextlib.suppress(TypeError, ValueError):  # functions written in C have no signature
            if self.tensors is None and "Tensor" in str(inspect.signature(function)):
                self.tensors = True

    def __call__(self, arrays: Sequence[Array], *others: Any, **keywords: Any) -> Any:
        """The output for arrays of one library, in this library if it is an array; the others are passed on."""
        generators = [other for other in (*others, *keywords.values()) if isinstance(other, np.random.Generator)]
        states = [generator.bit_generator.state for generator in generators]
        first = not isinstance(arrays[0], np.ndarray) if self.tensors is None else self.tensors
        try:
            output = self._output(first, arrays, others, keywords)
        except Exception as error:
            if self.tensors is not None or "torch" not in sys.modules:
                raise
            for generator, state in zip(generators, states, strict=True):
                generator.bit_generator.state = state
            first = not first
            try:
                output = self._output(first, arrays, others, keywords)
            except Exception as again:
                raise again if re.search("Tensor|ndarray", str(error)) else error from None
        self.tensors = first
        if isinstance(arrays[0], np.ndarray):
            return on_host(output) if hasattr(output, "detach") else output
        return to_backend_of(output, arrays[0]) if isinstance(output, np.ndarray) else output

    def _output(self, tensors: bool, arrays: Sequence[Array], others: Sequence[Any], keywords: dict[str, Any]) -> Any:
        # copies, for a function that works in place; times 1, which keeps a subclass of np.ndarray
        copies = [1 * array for array in arrays]
        if not tensors:
            return self.function(*(c if isinstance(c, np.ndarray) else on_host(c) for c in copies), *others, **keywords)
        torch = importlib.import_module("torch")
        in_model = not isinstance(arrays[0], np.ndarray)  # with the gradients that it has there
        with torch.set_grad_enabled(in_model and torch.is_grad_enabled()):
            moved = (to_torch(c) if isinstance(c, np.ndarray) else c for c in copies)
            return self.function(*moved, *others, **keywords)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, or of the ``forward`` of a torch module. Raises ValueError if it has none."""
    return inspect.signature(getattr(function, "forward", function))


def output_on_host(who: str, call: Callable[[], Any], query: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The output of a function that ``who`` names. Raises EstimatorError if it fails, or is not numbers (L, d_v)."""
    with failures_named(who):
        output = np.asarray(on_host(call()))
    expected = (len(query), value.shape[-1])
    if output.shape != expected or output.dtype.kind not in "fiu":
        raise EstimatorError(
            f"{who} returned {output.dtype} of shape {output.shape}; (L, d_v) = {expected} was expected"
        )
    return output


@dataclass(frozen=True)
class Function(Method):
    """A function f(query, key, value, size, rng) -> output of NumPy or torch arrays: (n, d), (l, d), (l, d_v).

    It is called like attention, with unscaled queries and keys, and claims nothing. An attribute ``multiplications``, a
    function of shape and size, may state its cost. It is given NumPy arrays or torch tensors, whichever it takes; an
    attribute ``tensors`` may say so, and in a model saves copies. path: "module:function", by which another process
    finds it. Raises EstimatorError for an output that is not an (n, d_v) array. Infinite and NaN entries are a
    measurement: an infinite error.
    """

    reference = "a function of the user's"
    description = "f(query, key, value, size, rng) -> output"
    arrays = "single"
    permutation_invariant = False  # it claims nothing
    name: str = field(init=False, default="")  # pyright: ignore[reportIncompatibleVariableOverride]
    function: Callable[..., Any] = field(init=False, default=len, repr=False)
    path: str = field(init=False, default="", repr=False)
    _call: ArrayFunction = field(init=False, default=ArrayFunction(len), repr=False, compare=False)

    @staticmethod
    def of(function: Callable[..., Any], path: str = "") -> "Function":
        """Make the method that calls this function. Raises ScenarioError for another signature."""
        name = path.rpartition(":")[2] or getattr(function, "__name__", type(function).__name__)
        wanted = f"def {name}(query, key, value, size, rng)"
        try:
            parameters = signature_of(function)
        except ValueError:  # functions written in C have none
            raise ScenarioError(f"{name} does not say what parameters it takes: wrap it in `{wanted}`") from None
        try:
            parameters.bind(*range(5))
        except TypeError:
            raise ScenarioError(f"write `{wanted}`, not `def {name}{parameters}`") from None
        made = Function()
        vars(made).update(name=name, function=function, path=path, _call=ArrayFunction(function))
        return made

    def __reduce__(self) -> Any:
        return (_of_path, (self.path,)) if self.path else (Function.of, (self.function,))

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        xp, (query, key) = array_namespace(problem.query), problem.unscaled()
        for size, copied in zip(sizes, streams.for_sizes(len(sizes)), strict=True):
            (rng,) = copied.generators
            again = copy.deepcopy(rng)  # for the row sums of the same draw: its output where every value is 1
            output = self.output(query, key, problem.value, size, rng)
            ones = self.output(query, key, xp.ones_like(problem.value), size, again)
            yield Estimate(size, size, output, None, ones[..., :1])

    @property
    def tensors(self) -> bool:
        """Whether it is known to take torch tensors."""
        return bool(self._call.tensors)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        stated = getattr(self.function, "multiplications", None)
        return None if stated is None else stated_cost(self.name, lambda: float(stated(shape, size)))

    def output(self, query: Array, key: Array, value: Array, size: int, rng: np.random.Generator) -> Array:
        """What the function returns. Raises EstimatorError for anything but an array (n, d_v)."""
        xp, shape = array_namespace(value), (query.shape[-2], value.shape[-1])
        output = self._call((query, key, value), size, rng)
        expected = np.ndarray if isinstance(value, np.ndarray) else type(value)
        is_array = type(output) in (expected, type(value))
        if not (is_array and tuple(output.shape) == shape and xp.isdtype(output.dtype, ("real floating", "integral"))):
            kind = type(output).__name__
            given = f"{kind} of shape {tuple(output.shape)} and {output.dtype}" if is_array else kind
            wanted = f"{expected.__name__} of shape {shape} and {value.dtype}"
            raise EstimatorError(f"{self.name} returned {given}; it must return {wanted}")
        return 1 * output  # the next call may write into the same array


def _of_path(path: str) -> Function:
    """The method of the function at "module:function"."""
    return Function.of(import_object("method", path), path)


def user_paths(member: Any) -> Iterator[str]:
    """The "module:name" of each class or function of the user's: of a member, what is inside it, and its sampler."""
    kind = type(member)
    path = member.path if isinstance(member, Function) else f"{kind.__module__}:{kind.__qualname__}"
    if path.partition(":")[0].partition(".")[0] not in ("", "favorbench"):
        yield path
    inside = [getattr(member, name.name, None) for name in dataclasses.fields(member)]
    for part in (*inside, getattr(member, "law", None)):
        if dataclasses.is_dataclass(part):
            yield from user_paths(part)


def user_sources(members: Iterable[Any]) -> dict[str, str]:
    """By name, the SHA-256 of the user's modules that these members, those inside them, and their samplers are from."""
    names = {path.partition(":")[0] for member in members for path in user_paths(member)}
    return {name: digest for name in sorted(names) if (digest := module_digest(name))}
