"""The base classes of feature maps."""

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np

from favorbench.errors import EstimatorError, ScenarioError
from favorbench.numerics.arrays import Array, Features, Float
from favorbench.parameters import check_parameters
from favorbench.registry import is_ours
from favorbench.samplers.laws import PairLaw, RowLaw

Randomness = Literal["omega", "own", "none"]

#: Shapes of the arguments and results of maps: queries or keys, scaled; keys and queries; omega; its products with
#: the tokens; one number for each pair of a query and a key, and of two keys.
Tokens = Float[Array, "*batch n d"]
OneToken = Float[Array, "1 d"]
Keys = Float[Array, "*batch l d"]
Omega = Float[Array, "*draws R d"]
Projection = Float[Array, "*draws n R"]
Pairs = Float[Array, "*batch n l"]
KeyPairs = Float[Array, "l l"]

#: Blocks of features, which a map returns.
FeatureBlocks = tuple[Features, ...]

Value = TypeVar("Value")


class _Claim:
    """A property that a class has too: that of its default parameters."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        self.of = of

    def __get__(self, instance: "FeatureMap | None", owner: type["FeatureMap"]) -> Any:
        if instance is None:
            try:
                instance = owner()
            except TypeError:  # abstract, or around another map
                raise AttributeError(f"{owner.__name__} claims this where it is built: there is no default") from None
        return self.of(instance)


def claim(of: Callable[[Any], Value]) -> Value:
    """A claim that follows from a map's parameters, written where a plain one is: ``causal_safe = claim(...)``."""
    return _Claim(of)  # pyright: ignore[reportReturnType]  (as a class attribute it is read as the value)


class Sample(NamedTuple):
    """The random numbers of one map: omega, and what else it draws (phases, integers, hashes)."""

    omega: Array
    extra: Any = None


#: Names of hooks up to version 0.2, which maps of users may still have.
_RENAMED = {
    "own_products": "map_multiplications", "fit_products": "fit_multiplications", "ready": "with_parameters",
    "takes_data": "data_dependent",
}  # fmt: skip


class FeatureMap(ABC):
    """A feature map phi with phi(x).phi(y) near exp(x.y), for x and y already scaled by d^-1/4.

    A member is a frozen dataclass with one method, ``features``, and states its claims: the kernel it estimates
    (``target_kernel``), whether that is the softmax kernel (``unbiased``), and its variance in closed form. Features do
    not contain the factor 1/sqrt(num_projections) of the papers: it cancels in attention, and ``kernel_estimate``
    divides by num_projections.
    """

    name: ClassVar[str]
    reference: ClassVar[str]
    #: Columns of the feature matrix for each projection: 2 for cosines and sines. 0: nothing random, fixed blocks only.
    features_per_projection: ClassVar[int] = 1
    #: No feature is negative, so no normaliser is.
    nonnegative: ClassVar[bool] = False
    #: The kernel estimate has mean exp(x.y) when the rows of omega are N(0, I).
    unbiased: ClassVar[bool] = False
    #: The feature of one token depends on that token alone; on others only through ``fit``, as tiles are evaluated.
    causal_safe: ClassVar[bool] = True
    #: The features of R projections are the first of those of more. If not, the engine evaluates every R anew.
    nested: ClassVar[bool] = True
    #: Everything random is in ``draw_extra``: only the number of rows of omega counts, and no sampler is used.
    own_sample: ClassVar[bool] = False
    #: A projection w and its opposite -w give the same estimate, in the mean over all else that is random.
    even: ClassVar[bool] = False
    #: The formula gives queries and keys different features; elsewhere, where they differ, it must not matter.
    asymmetric: ClassVar[bool] = False
    #: ``fit`` takes parameters from queries and keys.
    data_dependent: ClassVar[bool] = claim(lambda self: type(self).fit is not FeatureMap.fit)
    #: These parameters depend on omega too.
    fit_needs_omega: ClassVar[bool] = False
    #: A transform that no other may stand before.
    outermost: ClassVar[bool] = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for old, new in _RENAMED.items():
            if old in vars(cls):
                setattr(cls, new, vars(cls)[old])

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def randomness(self) -> Randomness:
        """The source of randomness: "omega" of a sampler, its "own" sample for any sampler, or "none".

        "own" and "none" leave no sampler to vary; with "none" R is ignored, too.
        """
        if not self.features_per_projection:
            return "none"
        return "own" if self.own_sample else "omega"

    @property
    def draws_extra(self) -> bool:
        """Whether the map draws anything besides omega."""
        return type(self).draw_extra is not FeatureMap.draw_extra

    @abstractmethod
    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        """Blocks of features of the rows of x, each with one column per projection (or fixed).

        x: (..., n, d), scaled. projection: (..., n, R) = x @ omega.T. sample: omega, (..., R, d), and what
        ``draw_extra`` gave; leading axes are independent samples.
        """

    def query_features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        """Features of queries; the same as those of keys unless the map is asymmetric."""
        return self.features(x, projection, sample)

    def key_features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        """Features of keys."""
        return self.features(x, projection, sample)

    def num_features(self, num_projections: int, head_dim: int) -> int:
        """Columns of the feature matrix, all blocks together."""
        return self.features_per_projection * num_projections

    def multiplications(self, n: int, l: int, d: int, d_v: int, num_projections: int) -> float | None:  # noqa: E741
        """Multiplications of the matrix products for n queries and l keys; None where they are not known."""
        projected = num_projections * d if self.randomness == "omega" else 0
        products = float((n + l) * (projected + self.num_features(num_projections, d) * d_v))
        return products + self.map_multiplications(n, l, d, num_projections)

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """Multiplications other than the projections of tokens and the products of features with values.

        Terms that do not grow with the tokens, for a fitted matrix for instance, are left out.
        """
        return 0.0

    def fit_multiplications(self, n: int, l: int, d: int) -> float:  # noqa: E741
        """The share of ``map_multiplications`` that ``fit`` does: a map that is fitted once and frozen saves it."""
        return 0.0

    def draw_extra(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray | None:
        """Draw what the map needs besides omega, an array; nothing by default.

        Equal generators give the same for the first R of more projections, if the map is nested.
        """
        return None

    def extra_entries(self, num_projections: int, head_dim: int) -> int:
        """Numbers that ``draw_extra`` draws, for the stated memory; 0 where they are as few as those of omega."""
        return 0

    def fit(self, x: Tokens, y: Keys, omega: Omega | None) -> "FeatureMap":
        """Return the map with parameters for the data (scaled queries x and keys y); itself by default.

        omega: None where the map will be used on other data, unless ``fit_needs_omega``.
        """
        return self

    def with_parameters(self, x: Tokens, y: Keys) -> "FeatureMap":
        """Return the map whose features ``kernel_estimate`` uses and the closed forms describe; itself by default.

        A map without features before ``fit`` takes its parameters from these x and y, unless it has them already.
        """
        return self

    @abstractmethod
    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        """The mean of the kernel estimate over omega: (n, l) for x (n, d), y (l, d).

        For N(0, I) rows and an unbiased map it is exp(x.y).
        """

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs | None:
        """Var(kernel estimate) / target^2 under independent N(0, I) rows, (n, l); None where none is known."""
        return None

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs | None:
        """s = |x + y|^2 for maps of exp(w.(x + y)), -|x - y|^2 for maps of cos(w.(x - y)): (n, l); None for others.

        The dependence between rows acts on s, and the second moment of an estimate depends on it.
        """
        return None

    def pair_moment(self, x: Tokens, y: Keys, pair: PairLaw) -> Pairs | None:
        """E k(w) k(w') / exp(x.y)^2, with k(w) the estimate of one row alone and (w, w') of the law ``pair``: (n, l).

        1 for independent N(0, I) rows. The default is right for maps of exp(w.(x + y)) and cos(w.(x - y)); a map that
        gives rows other weights as well overrides it. None where it is not known.
        """
        s = self.pair_argument(x, y)
        if s is None:
            return None
        return (pair.even(s) if self.even else pair.sum(s)) * np.exp(-s)

    def covariance(self, x: OneToken, y: Keys) -> KeyPairs | None:
        """Relative covariance of the estimates of a query x (1, d) with keys y (l, d), one projection, iid: (l, l)."""
        return None


def checked_blocks(feature_map: FeatureMap, blocks: FeatureBlocks, sample: Sample) -> FeatureBlocks:
    """The blocks that a map returned. Raises EstimatorError unless they have the columns that it declares.

    Attention uses the first R columns of a block for R projections, and would ignore any others. Those of a user's map
    are copied, as its next call may write into the same arrays.
    """
    name, (size, head_dim) = feature_map.name, sample.omega.shape[-2:]
    one = isinstance(blocks, Features)  # a NamedTuple: its parts would pass for blocks
    if one or not isinstance(blocks, tuple | list) or not all(isinstance(block, Features) for block in blocks):
        raise EstimatorError(f"features of {name} must be a tuple of Features: write (Features(...),), with the comma")
    parts = [block.log_scale if block.values is None else block.values for block in blocks]
    if any("complex" in str(part.dtype) for part in parts):
        raise EstimatorError(
            f"features of {name} are complex numbers; allowed: real ones, such as cosines and sines in two blocks"
        )
    widths = [part.shape[-1] for part in parts]
    if wrong := next((w for w, block in zip(widths, blocks, strict=True) if not block.fixed and w != size), 0):
        raise EstimatorError(
            f"features of {name} have a block of {wrong} columns for {size} projections; allowed: one column for each, "
            "in as many blocks as necessary: (Features(cos, ...), Features(sin, ...))"
        )
    if sum(widths) != (declared := feature_map.num_features(size, head_dim)):
        raise EstimatorError(
            f"features of {name} have {sum(widths)} columns for {size} projections, and it declares {declared}: "
            "correct its features_per_projection (with fixed blocks: num_features)"
        )
    return blocks if is_ours(feature_map) else tuple(block.copied() for block in blocks)


Built = TypeVar("Built")


@dataclass(frozen=True, eq=False)  # it holds an array: equal only to itself
class Fitted:
    """The result of ``fit``: maps that were fitted to different data are different maps."""

    values: Array


def with_values(built: Built, **values: Any) -> Built:
    """A copy with fields set that its constructor does not take: results of ``fit``."""
    copied = copy.copy(built)
    for name, value in values.items():
        object.__setattr__(copied, name, value)
    return copied


def _delegating(cls: type) -> Any:
    """Delegate every claim and method of FeatureMap that a class does not define, but for those that follow from it."""
    defined = {*vars(cls), "outermost", "randomness", "multiplications"}
    for name in {*FeatureMap.__annotations__, *vars(FeatureMap)} - defined:
        if not name.startswith("_"):
            setattr(cls, name, claim(attrgetter(f"wrapped.{name}")))
    return cls


@dataclass(frozen=True)
@_delegating
class WrappedMap(FeatureMap):
    """A map around another one: it behaves like the other, except where a subclass overrides it."""

    wrapped: FeatureMap
    #: The part before the colon in ``prefix:map``, for the transforms of the registry.
    prefix: ClassVar[str] = ""
    name: ClassVar[str] = claim(lambda self: f"{self.prefix}:{self.wrapped.name}" if self.prefix else self.wrapped.name)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefix and self.wrapped.outermost:
            first = getattr(self.wrapped, "prefix", "")
            raise ScenarioError(f"{first}: stands before all other transforms of a map: {first}:{self.prefix}:...")

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        return self.wrapped.features(x, projection, sample)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return self.wrapped.target_kernel(x, y, rows)

    def fit(self, x: Tokens, y: Keys, omega: Omega | None) -> "WrappedMap":
        return dataclasses.replace(self, wrapped=self.wrapped.fit(x, y, omega))

    def with_parameters(self, x: Tokens, y: Keys) -> "WrappedMap":
        return dataclasses.replace(self, wrapped=self.wrapped.with_parameters(x, y))
