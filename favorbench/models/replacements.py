"""What is put in the place of a model's attention: a feature map, a method, exact attention in another precision, or
nothing at all."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import numpy as np

from favorbench.attention.linear import linear_attention, sample_omega
from favorbench.baselines import BASELINES, get_baseline
from favorbench.errors import ScenarioError
from favorbench.maps import Sample
from favorbench.maps.calibrated import calibrations
from favorbench.methods import AttentionProblem, Method, Shape, get_method
from favorbench.methods.features import LinearAttention, name_of, sampler_of
from favorbench.methods.function import Function
from favorbench.numerics.streams import Streams, stream
from favorbench.registry import nearest
from favorbench.users import failures_named

Tensor = Any  # of torch

#: Precisions that exact attention may be computed in.
DTYPES = ("float64", "float32", "bfloat16", "float16")


class LayerHeads(NamedTuple):
    """Queries (B, H, n, d), keys (B, H, l, d), values (B, H, l, d_v): attention is softmax(q k^T / sqrt(d)) v.

    numbers: of some heads of a layer, where each stands among all B * H: it draws what it draws among them.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool
    numbers: tuple[int, ...] = ()

    @property
    def shape(self) -> Shape:
        """Of one head."""
        n, d = self.query.shape[-2:]
        return Shape(n, self.key.shape[-2], d, self.value.shape[-1], self.causal)

    def part(self, batch: int) -> "LayerHeads":
        """One member of the batch, which keeps its axis."""
        return self._replace(**{name: getattr(self, name)[batch : batch + 1] for name in ("query", "key", "value")})

    def select_heads(self, chosen: Sequence[int]) -> "LayerHeads":
        """Some heads, by number."""
        batch, heads = self.query.shape[:2]
        numbers = tuple(i * heads + head for i in range(batch) for head in chosen)
        query, key, value = (array[:, chosen] for array in self[:3])
        return LayerHeads(query, key, value, self.causal, numbers)


def exact_multiplications(shape: Shape) -> float:
    """Of exact attention to one head: d + d_v for each pair of a query and a key that it sees."""
    pairs = shape.n * (shape.n + 1) / 2 if shape.causal else shape.n * shape.l
    return pairs * (shape.d + shape.d_v)


class Replacement(ABC):
    """Answers in the place of attention. Deterministic but for the stream that its ``names`` give it."""

    label: str
    #: None where it has none, or plays no part.
    sampler: str | None = None
    size: int | None = None
    #: What it draws is not the same for every draw.
    random: bool = False
    causal_safe: bool = True
    #: Of its rows: map, method, oracle, exact, or trivial.
    kind: str = "exact"
    #: It has parameters that are fitted to a text, and are not yet.
    needs_calibration: bool = False
    #: Layers that it is made for; none: any.
    layers: tuple[int, ...] = ()

    @property
    def every(self) -> tuple["Replacement", ...]:
        """What it consists of, where heads are replaced differently."""
        return (self,)

    def is_for(self, layers: Iterable[int]) -> bool:
        """Whether it replaces anything in these layers."""
        return not self.layers or not {*self.layers}.isdisjoint(layers)

    def check(self, shape: Shape, heads: int, layer: int) -> None:  # noqa: B027 - most can answer all
        """Raise ScenarioError or InputError for heads of a layer that it cannot answer."""

    @abstractmethod
    def outputs(self, heads: LayerHeads, seed: int, names: Sequence[str | int], layer: int) -> Tensor:
        """(B, H, n, d_v), of the precision of the queries. names: of its random stream, beside what it is itself."""

    def multiplications(self, shape: Shape) -> float | None:
        """Those of the matrix products of one head; None where they are not known."""
        return 0.0

    def work(self, shape: Shape, heads: int, layer: int) -> float | None:
        """Multiplications in all heads of a layer; None where they are not known."""
        each = self.multiplications(shape)
        return None if each is None else heads * each


@dataclass(frozen=True)
class EstimatedAttention(Replacement):
    """An estimator at one size: a method, whose heads draw for themselves, or a map, whose heads share omega.

    fitted: for each layer the method with its parameters frozen, where it was calibrated on another text.
    """

    method: Method
    requested_size: int = 64
    fitted: Mapping[int, Method] = field(default_factory=dict)

    @property
    def label(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return name_of(self.method)

    @property
    def kind(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        if isinstance(self.method, LinearAttention):
            return "map"
        return "trivial" if self.label == "uniform" else "oracle" if self.method.oracle else "method"

    @property
    def sampler(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return sampler_of(self.method)

    @property
    def random(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.method.random

    @property
    def size(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.requested_size if self.method.every_size else None

    @property
    def causal_safe(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.method.causal_safe

    @property
    def needs_calibration(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.fitted and bool(calibrations(self.method))

    def check(self, shape: Shape, heads: int, layer: int) -> None:
        self.method.check((self.requested_size,), shape)

    def multiplications(self, shape: Shape) -> float | None:
        return self.method.multiplications(shape, self.size or 1)

    def outputs(self, heads: LayerHeads, seed: int, names: Sequence[str | int], layer: int) -> Tensor:
        torch = import_module("torch")
        shape, query, method = heads.shape, heads.query, self.fitted.get(layer, self.method)
        if isinstance(method, LinearAttention):
            rng = stream(seed, "model", "omega", *names)
            drawn = sample_omega(method.law, self.size or 1, shape.d, rng, method.wrapped)
            sample = Sample(*(part if part is None else torch.as_tensor(np.asarray(part)).to(query) for part in drawn))
            return linear_attention(query, heads.key, heads.value, sample, method.wrapped, heads.causal).to(query)
        if shape.causal and not method.causal_safe:
            raise ScenarioError(f"method {self.label!r} uses the whole sequence and cannot be causal")
        if method.needs_positions and shape.n != shape.l:
            raise ScenarioError(f"method {self.label!r} needs as many queries as keys")
        self.check(shape, query.shape[1], layer)
        count = query.shape[0] * query.shape[1]
        numbers = heads.numbers or range(count)
        generators = [stream(seed, "model", "method", self.label, *names, number) for number in numbers]
        flat = [array.reshape(count, *array.shape[-2:]) for array in heads[:3]]
        with failures_named(self.label):
            if method.arrays == "batched":
                streams = Streams(generators, lambda hosts: torch.as_tensor(np.stack(hosts), device=query.device))
                output = self._output(method, flat, heads.causal, streams)
            else:
                each = zip(*flat, generators, strict=True)
                output = torch.stack([self._of_head(method, head, heads.causal, rng) for *head, rng in each])
        return output.reshape(*query.shape[:-1], shape.d_v).to(query)

    def _of_head(self, method: Method, arrays: list[Tensor], causal: bool, rng: np.random.Generator) -> Tensor:
        torch = import_module("torch")
        if method.arrays == "host" or (isinstance(method, Function) and not method.tensors):
            hosts = [array.double().cpu().numpy() for array in arrays]
            return torch.as_tensor(np.array(self._output(method, hosts, causal, Streams.of(rng))))
        streams = Streams((rng,), lambda hosts: torch.as_tensor(hosts[0], device=arrays[0].device))
        return self._output(method, arrays, causal, streams)

    def _output(self, method: Method, arrays: Sequence[Any], causal: bool, streams: Streams) -> Any:
        query, key, value = arrays
        problem = AttentionProblem.of(query, key, value, causal)
        (estimate,) = method.estimates(problem, (self.requested_size,), streams)
        return estimate.output


@dataclass(frozen=True)
class Exact(Replacement):
    """Exact attention, in another precision if one is named."""

    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            close = nearest(str(self.dtype), DTYPES)
            raise ScenarioError(f"`dtype` {self.dtype!r} given{close}; allowed: {', '.join(DTYPES)}")

    @property
    def label(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"exact, attention in {self.dtype}" if self.dtype else "exact"

    def outputs(self, heads: LayerHeads, seed: int, names: Sequence[str | int], layer: int) -> Tensor:
        torch = import_module("torch")
        dtype = heads.query.dtype if self.dtype is None else getattr(torch, self.dtype)
        query, key, value = (array.to(dtype) for array in heads[:3])
        scale = query.shape[-1] ** -0.5
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=heads.causal, scale=scale
        ).to(heads.query)

    def multiplications(self, shape: Shape) -> float:
        return exact_multiplications(shape)


@dataclass(frozen=True)
class Removed(Replacement):
    """An output of 0: what the layer adds is gone."""

    label: str = "removed"
    kind: ClassVar[str] = "trivial"  # pyright: ignore[reportIncompatibleVariableOverride]

    def outputs(self, heads: LayerHeads, seed: int, names: Sequence[str | int], layer: int) -> Tensor:
        return heads.query.new_zeros((*heads.query.shape[:-1], heads.value.shape[-1]))


def replacement(method: str | Method, size: int = 64, dtype: str | None = None) -> Replacement:
    """What ``method`` names: a method or baseline, "exact" (in ``dtype``) or "removed". Raises ScenarioError."""
    if method == "exact":
        return Exact(dtype)
    if dtype is not None:
        raise ScenarioError("`dtype` is the precision of exact attention: use it with `method` exact")
    if method == "removed":
        return Removed()
    name = method.partition("(")[0].strip() if isinstance(method, str) else ""
    found = get_baseline(method) if name in {baseline.name for baseline in BASELINES} else get_method(method)
    return EstimatedAttention(found, size)
