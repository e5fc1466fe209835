"""What is put in the place of a model's attention: a feature map, a method, exact attention in another precision, or
nothing at all."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.linear import linear_attention, sample_omega
from favorbench.baselines import BASELINES, get_baseline
from favorbench.errors import ScenarioError
from favorbench.maps import FeatureMap, Sample
from favorbench.methods import Method, Shape, get_method
from favorbench.methods.base import AttentionProblem
from favorbench.methods.features import FromMap
from favorbench.methods.function import Function
from favorbench.numerics.streams import Streams, stream
from favorbench.registry import label, nearest
from favorbench.users import failures_named

Tensor = Any  # of torch

#: Precisions that exact attention may be computed in.
DTYPES = ("float64", "float32", "bfloat16", "float16")


class Heads(NamedTuple):
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

    def part(self, batch: int) -> "Heads":
        """One member of the batch, which keeps its axis."""
        return self._replace(**{name: getattr(self, name)[batch : batch + 1] for name in ("query", "key", "value")})

    def of(self, chosen: Sequence[int]) -> "Heads":
        """Some heads, by number."""
        batch, heads = self.query.shape[:2]
        numbers = tuple(i * heads + head for i in range(batch) for head in chosen)
        query, key, value = (array[:, chosen] for array in self[:3])
        return Heads(query, key, value, self.causal, numbers)


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
    def outputs(self, heads: Heads, seed: int, names: Sequence[str | int], layer: int) -> Tensor:
        """(B, H, n, d_v), of the precision of the queries. names: of its random stream, beside what it is itself."""

    def multiplications(self, shape: Shape) -> float | None:
        """Those of the matrix products of one head; None where they are not known."""
        return 0.0

    def work(self, shape: Shape, heads: int, layer: int) -> float | None:
        """Multiplications in all heads of a layer; None where they are not known."""
        each = self.multiplications(shape)
        return None if each is None else heads * each


@dataclass(frozen=True)
class ByMap(Replacement):
    """Linear attention; the heads of a layer share omega.

    fitted: for each layer the map with its parameters frozen, where it was calibrated on another text.
    """

    map: FeatureMap
    sampler: str | None = "orthogonal"
    num_projections: int = 256
    fitted: Mapping[int, FeatureMap] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.map.randomness != "omega":
            object.__setattr__(self, "sampler", None)

    @property
    def label(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return label(self.map)

    @property
    def random(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.map.randomness != "none"

    @property
    def size(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.num_projections if self.random else None

    @property
    def causal_safe(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.map.causal_safe or bool(self.fitted)

    def outputs(self, heads: Heads, seed: int, names: Sequence[str | int], layer: int) -> Tensor:
        torch = import_module("torch")
        query, d = heads.query, heads.query.shape[-1]
        rng = stream(seed, "model", "omega", *names)
        drawn = sample_omega(self.sampler or "iid", self.size or 1, d, rng, self.map)
        parts = drawn if isinstance(drawn, Sample) else (drawn, None)
        omega, extra = (None if part is None else torch.as_tensor(np.asarray(part)).to(query) for part in parts)
        asked = self.fitted.get(layer, self.map)
        return linear_attention(query, heads.key, heads.value, Sample(omega, extra), asked, heads.causal).to(query)

    def multiplications(self, shape: Shape) -> float | None:
        return FromMap(self.map, self.sampler or "orthogonal").multiplications(shape, self.size or 1)


@dataclass(frozen=True)
class ByMethod(Replacement):
    """A method at one size; each head draws for itself. fitted: as of ByMap."""

    method: Method
    asked_size: int = 64
    fitted: Mapping[int, Method] = field(default_factory=dict)

    @property
    def label(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return label(self.method)

    @property
    def random(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.method.random

    @property
    def size(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.asked_size if self.method.every_size else None

    @property
    def causal_safe(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.method.causal_safe

    def outputs(self, heads: Heads, seed: int, names: Sequence[str | int], layer: int) -> Tensor:
        torch = import_module("torch")
        shape, query = heads.shape, heads.query
        if shape.causal and not self.method.causal_safe:
            raise ScenarioError(f"method {self.label!r} uses the whole sequence and cannot be causal")
        if self.method.needs_positions and shape.n != shape.l:
            raise ScenarioError(f"method {self.label!r} needs as many queries as keys")
        self.check(shape, query.shape[1], layer)
        count = query.shape[0] * query.shape[1]
        numbers = heads.numbers or range(count)
        generators = [stream(seed, "model", "method", self.label, *names, number) for number in numbers]
        flat = [array.reshape(count, *array.shape[-2:]) for array in heads[:3]]
        asked = self.fitted.get(layer, self.method)
        with failures_named(self.label):
            if asked.arrays == "batched":
                streams = Streams(generators, lambda hosts: torch.as_tensor(np.stack(hosts), device=query.device))
                found = self._answer(asked, flat, shape, streams)
            else:
                each = zip(*flat, generators, strict=True)
                found = torch.stack([self._of_one(asked, list(one), shape, generator) for *one, generator in each])
        return found.reshape(*query.shape[:-1], shape.d_v).to(query)

    def check(self, shape: Shape, heads: int, layer: int) -> None:
        self.method.check((self.asked_size,), shape)

    def _of_one(self, asked: Method, arrays: list[Tensor], shape: Shape, generator: np.random.Generator) -> Tensor:
        torch = import_module("torch")
        if asked.arrays == "host" or (isinstance(asked, Function) and not asked.tensors):
            hosts = [array.double().cpu().numpy() for array in arrays]
            return torch.as_tensor(np.array(self._answer(asked, hosts, shape, Streams.of(generator)))).to(arrays[0])
        streams = Streams((generator,), lambda hosts: torch.as_tensor(hosts[0], device=arrays[0].device))
        return self._answer(asked, arrays, shape, streams)

    def _answer(self, asked: Method, arrays: Sequence[Any], shape: Shape, streams: Streams) -> Any:
        query, key, value = arrays
        positions = np.arange(shape.n) if shape.n == shape.l else None
        factor = shape.d**-0.25
        question = AttentionProblem(query * factor, key * factor, value, positions, shape.causal)
        (answer,) = asked.estimates(question, (self.asked_size,), streams)
        return answer.output

    def multiplications(self, shape: Shape) -> float | None:
        return self.method.multiplications(shape, self.asked_size)


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

    def outputs(self, heads: Heads, seed: int, names: Sequence[str | int], layer: int) -> Tensor:
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

    def outputs(self, heads: Heads, seed: int, names: Sequence[str | int], layer: int) -> Tensor:
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
    return ByMethod(found, size)
