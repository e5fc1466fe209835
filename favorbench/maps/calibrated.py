"""Calibration, a transform of maps that take parameters from data: fitted once, to another text, and frozen."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from array_api_compat import is_array_api_obj

from favorbench.errors import InputError, ScenarioError
from favorbench.maps.base import FeatureMap, Keys, Omega, Pairs, Projection, Sample, Tokens, WrappedMap, with_values
from favorbench.numerics.arrays import Array, Features, array_namespace, as_like
from favorbench.registry import label
from favorbench.samplers.laws import RowLaw


@dataclass(frozen=True)
class Calibrated(WrappedMap):
    """``calibrated:map``: the map with parameters that were fitted once, to other queries and keys, and are frozen.

    The feature of a token then depends on that token alone: the map is causal-safe, whatever it takes from the data,
    and costs no pass over them. What holds of the map for any parameters holds of it: that it is unbiased, say, but not
    that its parameters are the best for what it meets. A map that takes nothing from data is itself.
    """

    #: Of what it was calibrated on; None before that.
    head_dim: int | None = field(default=None, init=False, repr=False)
    prefix: ClassVar[str] = "calibrated"
    reference: ClassVar[str] = "parameters of another text, frozen"
    causal_safe: ClassVar[bool] = True
    outermost: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wrapped.fit_needs_omega:
            raise ScenarioError(f"what {label(self.wrapped)} takes from data depends on omega, which is drawn anew")
        if not (self.wrapped.causal_safe or self.wrapped.data_dependent):
            raise ScenarioError(f"{label(self.wrapped)} has no `fit` whose parameters could be frozen")

    @property
    def data_dependent(self) -> bool:
        return False

    @property
    def needs_calibration(self) -> bool:
        """Whether it has no features before it is calibrated."""
        return self.wrapped.data_dependent and self.head_dim is None

    def calibrate(self, x: Tokens, y: Keys) -> "Calibrated":
        """The map with the parameters for queries x and keys y, scaled by d^-1/4."""
        return with_values(self, wrapped=self.wrapped.fit(x, y, None), head_dim=x.shape[-1])

    def fit(self, x: Tokens, y: Keys, omega: Omega) -> "Calibrated":
        return self

    def with_parameters(self, x: Tokens, y: Keys) -> "Calibrated":
        return with_values(self, wrapped=self._frozen(x))

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """Those of the map but for the ones of ``fit``."""
        return self.wrapped.map_multiplications(n, l, d, num_projections) - self.wrapped.fit_multiplications(n, l, d)

    def fit_multiplications(self, n: int, l: int, d: int) -> float:  # noqa: E741
        return 0.0

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return self._frozen(x).features(x, projection, sample)

    def query_features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return self._frozen(x).query_features(x, projection, sample)

    def key_features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return self._frozen(x).key_features(x, projection, sample)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return self._frozen(x).target_kernel(x, y, rows)

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs | None:
        return self._frozen(x).relative_variance(x, y, num_projections)

    def _frozen(self, x: Array) -> FeatureMap:
        """The map inside, with its parameters in the library, on the device and in the precision of x."""
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
    """The first of equally built members, each array in it replaced by ``of`` those that stand there in all of them."""
    first, changes = members[0], {}
    for name in [one.name for one in dataclasses.fields(first)]:
        values = [getattr(member, name) for member in members]
        if dataclasses.is_dataclass(values[0]):
            changes[name] = with_arrays(values, of)
        elif is_array_api_obj(values[0]) and values[0].shape:  # pyright: ignore[reportAttributeAccessIssue]
            changes[name] = of(values)
    return with_values(first, **changes)


def calibrations(member: Any) -> list[Calibrated]:
    """The calibrated maps of a map or method that wait for data, however deep inside its transforms."""
    if isinstance(member, Calibrated):
        return [member] if member.needs_calibration else []
    inside = getattr(member, "wrapped", None)
    return [] if inside is None else calibrations(inside)


def with_calibrated(member: Any, change: Callable[[Calibrated], FeatureMap]) -> Any:
    """A copy of a map or method in which the calibrated map, if there is one, is replaced."""
    if isinstance(member, Calibrated):
        return change(member)
    inside = getattr(member, "wrapped", None)
    return member if inside is None else with_values(member, wrapped=with_calibrated(inside, change))


def scaled(query: Array, key: Array) -> tuple[Array, Array]:
    """Queries and keys times d^-1/4, in float64, in which parameters are computed."""
    xp, factor = array_namespace(query, key), query.shape[-1] ** -0.25
    return xp.astype(query, xp.float64) * factor, xp.astype(key, xp.float64) * factor
