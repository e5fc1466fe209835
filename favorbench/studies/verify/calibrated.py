"""Calibrated maps, as verify meets them: frozen at tokens of its own, which are none of those it measures on."""

from dataclasses import dataclass
from typing import Any

from favorbench import maps
from favorbench.maps.base import FeatureMap, KeyPairs, Keys, Omega, OneToken, Pairs, Tokens
from favorbench.maps.calibrated import Calibrated, with_calibrated
from favorbench.numerics.arrays import Array, as_like
from favorbench.numerics.streams import stream
from favorbench.samplers.laws import PairLaw

TOKENS = 50  # that a map is calibrated on


@dataclass(frozen=True)
class CalibratedElsewhere(Calibrated):
    """A map calibrated on other tokens, whatever it is asked for and in every dimension."""

    @property
    def data_dependent(self) -> bool:
        return True

    def fit(self, x: Tokens, y: Keys, omega: Omega | None) -> Calibrated:
        return self.with_parameters(x, y)

    def with_parameters(self, x: Tokens, y: Keys) -> Calibrated:
        return self._at(x)

    def _frozen(self, x: Tokens) -> FeatureMap:
        return self._at(x).wrapped

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs | None:
        return self._at(x).pair_argument(x, y)

    def pair_moment(self, x: Tokens, y: Keys, pair: PairLaw) -> Pairs | None:
        return self._at(x).pair_moment(x, y, pair)

    def covariance(self, x: OneToken, y: Keys) -> KeyPairs | None:
        return self._at(x).covariance(x, y)

    def _at(self, x: Array) -> Calibrated:
        """The map frozen at tokens of this dimension: with a mean, unequal axes, and queries unlike keys."""
        dim = x.shape[-1]
        rng = stream(0, "verify", "calibration", dim)
        widths, shifts = 0.2 + 0.4 * rng.random((2, dim)), 0.2 * rng.standard_normal((2, dim))
        query, key = (
            as_like(shift + width * rng.standard_normal((TOKENS, dim)), x)
            for shift, width in zip(shifts, widths, strict=True)
        )
        return Calibrated(self.wrapped).calibrate(query, key)


def get_map(spec: str) -> FeatureMap:
    """The feature map that ``spec`` names; one that is to be calibrated, calibrated on tokens of verify's own."""
    return calibrated_elsewhere(maps.get_map(spec))


def calibrated_elsewhere(member: Any) -> Any:
    """A map or method; its calibrated map, if it has one, calibrated on tokens of verify's own."""
    return with_calibrated(member, _elsewhere)


def _elsewhere(one: Calibrated) -> FeatureMap:
    return CalibratedElsewhere(one.wrapped) if one.needs_calibration else one
