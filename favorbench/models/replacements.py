"""Replacements of a model's attention: estimators, exact attention in another precision, or no attention."""

import contextlib
import copy
import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.linear import linear_attention, sample_omega
from favorbench.attention.problem import exact_multiplications
from favorbench.baselines import BASELINES, get_baseline
from favorbench.errors import ModelError, ScenarioError
from favorbench.maps.transforms import calibrations
from favorbench.methods import AttentionProblem, Method, Shape, get_method, method_attention
from favorbench.methods.base import cost_of
from favorbench.methods.features import LinearAttention, name_of, sampler_of
from favorbench.methods.function import Function
from favorbench.models import torch
from favorbench.numerics.streams import Streams, stream
from favorbench.registry import nearest
from favorbench.users import failures_named

Tensor = Any  # of torch

#: Names of a random stream, after those of the estimator.
StreamNames = Sequence[str | int]

#: Precisions that exact attention may be computed in.
DTYPES = ("float64", "float32", "bfloat16", "float16")


class LayerHeads(NamedTuple):
    """Queries (B, H, n, d), keys (B, H, l, d), values (B, H, l, d_v): attention is softmax(q k^T / sqrt(d)) v.

    numbers: the positions of selected heads among all B * H heads of the layer, which name their random streams.
    group: the number of adjacent query heads that share a key head. layer: its number in the model.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool
    numbers: tuple[int, ...] = ()
    group: int = 1
    layer: int = 0

    @property
    def shape(self) -> Shape:
        """The shape of one head."""
        n, d = self.query.shape[-2:]
        return Shape(n, self.key.shape[-2], d, self.value.shape[-1], self.causal)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(B, H, n, d_v)."""
        return *self.query.shape[:-1], self.value.shape[-1]

    def select_heads(self, chosen: Sequence[int]) -> "LayerHeads":
        """Some heads, by number, in ascending order. They stay in groups if all of every group are chosen."""
        batch, heads = self.query.shape[:2]
        if len(chosen) == heads:
            return self
        numbers = tuple(i * heads + head for i in range(batch) for head in chosen)
        query, key, value = (array[:, chosen] for array in self[:3])
        whole = {*Counter(head // self.group for head in chosen).values()} == {self.group}
        group = self.group if whole else 1
        return self._replace(query=query, key=key, value=value, numbers=numbers, group=group)


def total(multiplications: Iterable[float | None]) -> float | None:
    """The sum; None if any term is unknown."""
    counts = list(multiplications)
    return sum(count for count in counts if count is not None) if None not in counts else None


class Replacement(ABC):
    """Compute a layer's output in place of its attention. All randomness comes from a named stream."""

    label: str
    #: None if there is no choice of sampler, or of size.
    sampler: str | None = None
    size: int | None = None
    #: Whether draws differ from one another.
    random: bool = False
    causal_safe: bool = True
    #: The column ``kind`` of its rows: map, method, oracle, exact, or trivial.
    kind: str = "exact"
    #: Whether its parameters must still be fitted to a text.
    needs_calibration: bool = False
    #: The layers that it applies to; empty: all.
    layers: tuple[int, ...] = ()
    #: The layers that a model must have.
    needed_layers: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, str, int]:
        """The columns estimator, sampler and size of its rows."""
        return self.label, self.sampler or "-", self.size or 0

    def members(self) -> "tuple[Replacement, ...]":
        """The replacements of its heads, if they differ."""
        return (self,)

    def is_for(self, layers: Iterable[int]) -> bool:
        """Whether it replaces anything in these layers."""
        return not self.layers or not {*self.layers}.isdisjoint(layers)

    def check(self, shape: Shape, heads: int, layer: int) -> None:  # noqa: B027 - most accept all heads
        """Raise ScenarioError or InputError for heads of a layer that it cannot replace."""

    @abstractmethod
    def outputs(self, heads: LayerHeads, seed: int, names: StreamNames) -> Tensor:
        """Output (B, H, n, d_v) in the precision of the queries; names: further names of its random stream."""

    def multiplications(self, shape: Shape) -> float | None:
        """Multiplications of the matrix products of one head; None if unknown."""
        return 0.0

    def work(self, shape: Shape, heads: int, layer: int) -> float | None:
        """Multiplications in all heads of a layer; None if unknown."""
        per_head = self.multiplications(shape)
        return None if per_head is None else heads * per_head


class EstimatedAttention(Replacement):
    """An estimator at one size. The heads of a layer share the omega of a map; a method draws separately for each.

    fitted: by layer, the method with parameters that were calibrated on another text. or_exact: attention stays exact
    where the keys are too few for the size, as a certified setting applied to a short text should.
    """

    def __init__(
        self, method: Method, requested_size: int = 64, fitted: Mapping[int, Method] | None = None,
        or_exact: bool = False,
    ) -> None:  # fmt: skip
        self.method, self.requested_size, self.fitted, self.or_exact = method, requested_size, fitted or {}, or_exact
        self.label, self.sampler = name_of(method), sampler_of(method)
        self.size = requested_size if method.every_size else None
        self.random, self.causal_safe = method.random, method.causal_safe
        self.needs_calibration = not fitted and bool(calibrations(method))
        self.kind = "trivial" if self.label == "uniform" else "oracle" if method.oracle else "method"
        self.kind = "map" if isinstance(method, LinearAttention) else self.kind

    def check(self, shape: Shape, heads: int, layer: int) -> None:
        self._fits(shape)

    def _fits(self, shape: Shape) -> bool:
        """Whether there are enough keys for the size; raise ScenarioError if not, unless attention is exact then."""
        try:
            self.method.check((self.requested_size,), shape)
        except ScenarioError:
            if not self.or_exact:
                raise
            return False
        return True

    def multiplications(self, shape: Shape) -> float | None:
        if self.or_exact and not self._fits(shape):
            return exact_multiplications(shape)
        return cost_of(self.method, shape, self.size or 1)

    def outputs(self, heads: LayerHeads, seed: int, names: StreamNames) -> Tensor:
        if not all(bool(array.isfinite().all()) for array in heads[:3]):  # the estimate of an earlier layer failed
            return heads.query.new_full(heads.output_shape, torch.nan)
        query = heads.query
        if not isinstance(self.method, Function):  # in half precision logits would be rounded, which fused ones are not
            query = query.to(torch.promote_types(query.dtype, torch.float32))
        key, value = heads.key.to(query), heads.value.to(query)  # autocast leaves them in other precisions
        with torch.autocast(query.device.type, enabled=False):
            return self._estimate(heads._replace(query=query, key=key, value=value), seed, names).to(heads.query)

    def _estimate(self, heads: LayerHeads, seed: int, names: StreamNames) -> Tensor:
        """The output for heads of one precision."""
        method = self.fitted.get(heads.layer, self.method)
        if isinstance(method, LinearAttention):
            rng = stream(seed, "model", "omega", *names)
            with failures_named(self.label):
                return self._map_output(method, heads, rng).to(heads.query)
        shape, query = heads.shape, heads.query
        if shape.causal and not method.causal_safe:
            raise ScenarioError(f"method {self.label!r} uses the whole sequence and cannot be causal")
        if method.needs_positions and shape.n != shape.l:
            raise ScenarioError(
                f"method {self.label!r} needs as many queries as keys; to generate text, set use_cache=False"
            )
        if not self._fits(shape):
            return Exact().outputs(heads, seed, names)
        numbers = heads.numbers or range(query.shape[0] * query.shape[1])
        arrays = [array.reshape(-1, *array.shape[-2:]) for array in heads[:3]]
        batched = method.arrays == "batched"
        group = heads.group if shape.causal and batched and method.shared_block else 1
        generators = [stream(seed, "model", "method", self.label, *names, number) for number in numbers[::group]]
        compute = functools.partial(self._batched_output, group) if batched else self._separate_output
        output = compute(method, arrays, heads.causal, generators)
        if not output.requires_grad:
            output = _without_gradient()(output, self.label, *arrays)
        return output.reshape(heads.output_shape).to(query)

    def _map_output(self, method: LinearAttention, heads: LayerHeads, rng: np.random.Generator) -> Tensor:
        sample = sample_omega(method.law, self.size or 1, heads.shape.d, rng, method.wrapped)
        return linear_attention(heads.query, heads.key, heads.value, sample, method.wrapped, heads.causal)

    def _separate_output(
        self, method: Method, arrays: Sequence[Any], causal: bool, generators: Sequence[np.random.Generator]
    ) -> Tensor:
        """(heads, n, d_v), one head after the other, in NumPy where the method needs it."""
        given, kept = arrays, copy.deepcopy(generators)
        if method.arrays == "host" or (isinstance(method, Function) and not method.tensors):
            arrays = [array.detach().double().cpu().numpy() for array in arrays]
        heads, size = zip(*arrays, generators, strict=True), self.requested_size
        answers = (method_attention(q, k, v, method, size, rng, causal) for q, k, v, rng in heads)
        # copies, as a class may write the next head into the same array
        outputs = [torch.as_tensor(each, device=getattr(each, "device", "cpu")).clone() for each in answers]
        if arrays is not given and isinstance(method, Function) and method.tensors:  # its first call has shown that
            return self._separate_output(method, given, causal, kept)
        return torch.stack(outputs)

    def _batched_output(
        self, group: int, method: Method, arrays: Sequence[Any], causal: bool, generators: Sequence[np.random.Generator]
    ) -> Tensor:
        """(heads, n, d_v), all heads together.

        Groups of query heads with the same keys share all choices: their blocks are interleaved.
        """
        query, key, value = arrays
        length, block = query.shape[-2], method.shared_block
        streams = Streams(generators, lambda hosts: torch.as_tensor(np.stack(hosts), device=query.device))
        with failures_named(self.label):
            problem = AttentionProblem.of(_interleaved(query, group, block), key[::group], value[::group], causal)
            if group > 1:
                positions = torch.arange(length, device="cpu").expand(group, length)[..., None]
                problem = problem._replace(positions=_interleaved(positions, group, block).ravel().numpy())
            (estimate,) = method.estimates(problem, (self.requested_size,), streams)
        return _apart(estimate.output, group, block)


@functools.cache
def _without_gradient() -> Any:
    """A function of an output without gradients, as of NumPy, which refuses them: those that lack it would be wrong."""

    class WithoutGradient(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, output: Tensor, label: str, *_: Tensor) -> Tensor:
            context.label = label
            return output

        @staticmethod
        def backward(context: Any, *_: Any) -> Any:
            raise ModelError(
                f"{context.label} is computed in NumPy or detached, and no gradient passes through it: take another one"
            )

    return WithoutGradient.apply


def _interleaved(rows: Tensor, group: int, block: int) -> Tensor:
    """The rows of heads (G * group, n, c) block by block, in each those of all heads of a group: (G, group * n, c)."""
    if group == 1:
        return rows
    heads = rows.unflatten(0, (-1, group))
    count = heads.shape[2] // block
    blocks = heads[:, :, : count * block].unflatten(2, (count, block)).transpose(1, 2)
    return _cat(blocks.flatten(1, 3), heads[:, :, count * block :].flatten(1, 2), 1)


def _apart(rows: Tensor, group: int, block: int) -> Tensor:
    """The inverse of ``_interleaved``."""
    if group == 1:
        return rows
    count = rows.shape[1] // (group * block)
    blocks = rows[:, : count * group * block].unflatten(1, (count, group, block)).transpose(1, 2)
    rest = rows[:, count * group * block :].unflatten(1, (group, rows.shape[1] // group - count * block))
    return _cat(blocks.flatten(2, 3), rest, 2).flatten(0, 1)


def _cat(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """Both along a dimension, without a copy if one is empty."""
    parts = [part for part in (first, second) if part.shape[dim]]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


class Exact(Replacement):
    """Exact attention, in another precision if one is named."""

    def __init__(self, dtype: str | None = None) -> None:
        if dtype is not None and dtype not in DTYPES:
            close = nearest(str(dtype), DTYPES)
            raise ScenarioError(f"`dtype` {dtype!r} given{close}; allowed: {', '.join(DTYPES)}")
        self.dtype, self.label = dtype, f"exact, attention in {dtype}" if dtype else "exact"

    def outputs(self, heads: LayerHeads, seed: int, names: StreamNames) -> Tensor:
        dtype = heads.query.dtype if self.dtype is None else getattr(torch, self.dtype)
        query, key, value = (array.to(dtype) for array in heads[:3])
        attention = torch.nn.functional.scaled_dot_product_attention
        with torch.autocast(query.device.type, enabled=False) if self.dtype else contextlib.nullcontext():
            output = attention(query, key, value, is_causal=heads.causal, scale=query.shape[-1] ** -0.5)
        return output.to(heads.query)

    def multiplications(self, shape: Shape) -> float:
        return exact_multiplications(shape)


class Bfloat16Model(Exact):
    """Exact attention in a model that is entirely in bfloat16."""

    label = "exact, model in bfloat16"

    def __init__(self) -> None:
        self.dtype = None


class Removed(Replacement):
    """An output of 0, as if the layer had no attention."""

    label = "removed"
    kind = "trivial"

    def outputs(self, heads: LayerHeads, seed: int, names: StreamNames) -> Tensor:
        return heads.query.new_zeros(heads.output_shape)


def replacement(method: str | Method, size: int = 64, dtype: str | None = None) -> Replacement:
    """Build the replacement by a method or baseline, by "exact" (in ``dtype``) or "removed". Raises ScenarioError."""
    if method == "exact":
        return Exact(dtype)
    if dtype is not None:
        raise ScenarioError("`dtype` is the precision of exact attention: use it with `method` exact")
    if method == "removed":
        return Removed()
    return EstimatedAttention(method_or_baseline(method), size)


def method_or_baseline(spec: str | Method) -> Method:
    """A method, or a baseline that is used in its place. Raises ScenarioError."""
    name = spec.partition("(")[0].strip() if isinstance(spec, str) else ""
    return get_baseline(spec) if name in {baseline.name for baseline in BASELINES} else get_method(spec)
