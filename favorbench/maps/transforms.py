"""Transforms of maps: centring, and calibration, which fits parameters once and freezes them."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj

from favorbench.errors import InputError, ScenarioError
from favorbench.maps.base import (
    FeatureBlocks,
    FeatureMap,
    Keys,
    Omega,
    Pairs,
    Projection,
    Sample,
    Tokens,
    WrappedMap,
    with_values,
)
from favorbench.numerics.arrays import Array, array_namespace, as_like
from favorbench.registry import label
from favorbench.samplers.laws import RowLaw


@dataclass(frozen=True, eq=False)  # holds arrays: equal only to itself
class Means:
    """The means of queries and of keys, (..., 1, d)."""

    query: Array
    key: Array


def _of_centred(name: str) -> Any:
    """A method that asks the map inside for the centred points: compensation does not change a relative variance."""

    def method(self: "Centre", x: Tokens, y: Keys, *rest: Any) -> Pairs | None:
        centred = self.with_parameters(x, y)
        return getattr(centred.wrapped, name)(x - centred.fitted.query, y - centred.fitted.key, *rest)

    return method


@dataclass(frozen=True)
class Centre(WrappedMap):
    """``centre:map``: the features of x - a and y - b, with a and b the means of queries and keys, exactly compensated.

    exp(x.y) = exp((x - a).(y - b)) exp(b.x - a.b) exp(a.y). The factor of a query cancels in attention; that of a key
    is added to the logs of its features. This helps where queries and keys have means as large as their spread, as
    those of trained heads often have. The means are of the whole sequence, so the map is not causal-safe.

    References
    ----------
    For keys alone, where the factor cancels too, this is the "smooth K" of SageAttention, Zhang et al. 2024, arXiv
    2410.02367.
    """

    means: Means | None = field(default=None, init=False, repr=False)
    prefix = "centre"
    reference = "an identity; for keys alone Zhang et al. 2024 (SageAttention), arXiv 2410.02367"
    causal_safe = False
    asymmetric = True
    data_dependent = True

    @property
    def fitted(self) -> Means:
        """The means. Raises InputError before ``fit``."""
        if self.means is None:
            raise InputError(f"map {self.name!r} takes means of queries and keys: call fit(x, y, omega) first")
        return self.means

    def fit(self, x: Tokens, y: Keys, omega: Omega | None) -> "Centre":
        means = _means(x, y)
        return with_values(self, means=means, wrapped=self.wrapped.fit(x - means.query, y - means.key, omega))

    def with_parameters(self, x: Tokens, y: Keys) -> "Centre":
        means = _means(x, y) if self.means is None else self.means
        return with_values(self, means=means, wrapped=self.wrapped.with_parameters(x - means.query, y - means.key))

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """Count the product of each token with the mean of the others, too."""
        return self.wrapped.map_multiplications(n, l, d, num_projections) + float((n + l) * d)

    def query_features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        means, moved = self.fitted, x - self.fitted.query
        blocks = self.wrapped.query_features(moved, _centred(projection, means.query, sample), sample)
        return tuple(block.times(moved @ means.key.mT) for block in blocks)

    features = query_features

    def key_features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        means = self.fitted
        blocks = self.wrapped.key_features(x - means.key, _centred(projection, means.key, sample), sample)
        return tuple(block.times(x @ means.query.mT) for block in blocks)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        means = self.with_parameters(x, y).fitted
        factor = np.exp((x - means.query) @ means.key.mT + (y @ means.query.mT).T)
        return _of_centred("target_kernel")(self, x, y, rows) * factor

    relative_variance = _of_centred("relative_variance")
    pair_argument = _of_centred("pair_argument")
    pair_moment = _of_centred("pair_moment")
    covariance = _of_centred("covariance")


def _means(x: Array, y: Array) -> Means:
    xp = array_namespace(x, y)
    return Means(xp.mean(x, axis=-2, keepdims=True), xp.mean(y, axis=-2, keepdims=True))


def _centred(projection: Array, mean: Array, sample: Sample) -> Array:
    """The projection of x less its mean: omega is multiplied by the mean, not by all of x a second time."""
    return projection - mean @ sample.omega.mT


def of_frozen(name: str) -> Any:
    """A method that asks the map inside, with its parameters in the library, device and precision of x."""

    def method(self: "Calibrated", x: Tokens, *rest: Any) -> Any:
        return getattr(self.frozen(x), name)(x, *rest)

    return method


@dataclass(frozen=True)
class Calibrated(WrappedMap):
    """``calibrated:map``: the map with parameters that were fitted once, to other queries and keys, and are frozen.

    The feature of a token then depends on that token alone. The map is causal-safe, whatever it takes from the data,
    and costs no pass over them. Properties that hold for any parameters stay, unbiasedness for instance; but the
    parameters are not the best ones for the new data. A map that takes nothing from data is unchanged.
    """

    #: The head dimension of the data it was calibrated on; None before that.
    head_dim: int | None = field(default=None, init=False, repr=False)
    prefix = "calibrated"
    reference = "parameters of another text, frozen"
    causal_safe = True
    outermost = True
    data_dependent = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wrapped.fit_needs_omega:
            raise ScenarioError(f"what {label(self.wrapped)} takes from data depends on omega, which is drawn anew")
        if not (self.wrapped.causal_safe or self.wrapped.data_dependent):
            raise ScenarioError(f"{label(self.wrapped)} has no `fit` whose parameters could be frozen")

    @property
    def needs_calibration(self) -> bool:
        """Whether it has no features before it is calibrated."""
        return self.wrapped.data_dependent and self.head_dim is None

    def calibrate(self, x: Tokens, y: Keys) -> "Calibrated":
        """Return the map with the parameters for queries x and keys y, scaled by d^-1/4."""
        return with_values(self, wrapped=self.wrapped.fit(x, y, None), head_dim=x.shape[-1])

    def fit(self, x: Tokens, y: Keys, omega: Omega) -> "Calibrated":
        return self

    def with_parameters(self, x: Tokens, y: Keys) -> "Calibrated":
        return with_values(self, wrapped=self.frozen(x))

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """Count those of the map without those of ``fit``."""
        return self.wrapped.map_multiplications(n, l, d, num_projections) - self.wrapped.fit_multiplications(n, l, d)

    def fit_multiplications(self, n: int, l: int, d: int) -> float:  # noqa: E741
        return 0.0

    features = of_frozen("features")
    query_features = of_frozen("query_features")
    key_features = of_frozen("key_features")
    target_kernel = of_frozen("target_kernel")
    relative_variance = of_frozen("relative_variance")

    def frozen(self, x: Array) -> FeatureMap:
        """Return the map inside with its parameters in the library, on the device and in the precision of x."""
        if self.needs_calibration:
            raise InputError(
                f"map {label(self)!r} is not calibrated: use calibrate(query, key, map) on another text, or a sweep "
                "with `calibrate`"
            )
        if self.head_dim not in (None, x.shape[-1]):
            raise InputError(
                f"map {label(self)!r} was calibrated for head_dim {self.head_dim}, and is asked for {x.shape[-1]}"
            )
        return with_arrays([self.wrapped], lambda arrays: as_like(arrays[0], x))


def with_arrays(members: Sequence[Any], of: Callable[[list[Array]], Array]) -> Any:
    """The first of equally built members, each array replaced by ``of`` the arrays at this place in all of them."""
    first, changes = members[0], {}
    for part in dataclasses.fields(first):
        values = [getattr(member, part.name) for member in members]
        if dataclasses.is_dataclass(values[0]):
            changes[part.name] = with_arrays(values, of)
        elif is_array_api_obj(values[0]) and values[0].shape:  # pyright: ignore[reportAttributeAccessIssue]
            changes[part.name] = of(values)
    return with_values(first, **changes)


def with_calibrated(member: Any, change: Callable[[Calibrated], FeatureMap]) -> Any:
    """A copy of a map or method in which the calibrated map, if there is one, is replaced."""
    if isinstance(member, Calibrated):
        return change(member)
    inside = getattr(member, "wrapped", None)
    return member if inside is None else with_values(member, wrapped=with_calibrated(inside, change))


def calibrations(member: Any) -> list[Calibrated]:
    """The calibrated maps of a map or method that wait for data, however deep inside its transforms."""
    maps = []
    with_calibrated(member, lambda calibrated: maps.append(calibrated) or calibrated)
    return [calibrated for calibrated in maps if calibrated.needs_calibration]


def scaled(query: Array, key: Array) -> tuple[Array, Array]:
    """Queries and keys times d^-1/4, in float64, in which parameters are computed."""
    xp, factor = array_namespace(query, key), query.shape[-1] ** -0.25
    return xp.astype(query, xp.float64) * factor, xp.astype(key, xp.float64) * factor
