"""Discretely induced random features: powers of the coordinates, with random whole numbers as exponents."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy

from favorbench.maps.base import (
    FeatureBlocks,
    FeatureMap,
    Fitted,
    Keys,
    Omega,
    Pairs,
    Projection,
    Sample,
    Tokens,
    claim,
    with_values,
)
from favorbench.numerics.arrays import Array, Features, array_namespace, as_like, on_host, take_from
from favorbench.parameters import between, positive
from favorbench.samplers.laws import RowLaw

MEAN_LIMIT = 256.0  # of an exponent that is fitted. Any law of full support is unbiased; exp(-256) is still normal


@dataclass(frozen=True)
class _IntegerMap(FeatureMap):
    """A map with integer exponents w_l of the coordinates: phi(x) = prod_l x_l^(w_l) / sqrt(w_l! P(w_l)), 0^0 = 1."""

    fitted: Fitted | None = field(default=None, init=False, repr=False)
    features_per_projection = 1
    nonnegative = False  # but for coordinates that are all positive
    unbiased = True
    causal_safe = claim(lambda self: not self.data_dependent)
    data_dependent = claim(lambda self: self._given() is None)
    own_sample = True

    @abstractmethod
    def _given(self) -> float | None:
        """The given parameter of the law; None where it is fitted to the data."""

    @abstractmethod
    def _best(self, moments: np.ndarray) -> np.ndarray:
        """The best parameter for E x_l^2 E y_l^2, (..., d)."""

    @abstractmethod
    def _exponents(self, uniform: Array, parameter: Array) -> Array:
        """The whole numbers w at which the cumulative law passes ``uniform``."""

    @abstractmethod
    def _log_weights(self, parameter: Array, exponents: Array) -> Array:
        """sum_l log(w_l! P(w_l)), (..., R)."""

    def draw_extra(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        """Draw uniform numbers: the law of the exponents made of them may depend on the data."""
        return rng.random((num_projections, head_dim))

    def fit(self, x: Tokens, y: Keys, omega: Omega | None) -> "_IntegerMap":
        if self._given() is not None:
            return self
        xp = array_namespace(x)
        x, y = (xp.astype(a, xp.float64) for a in (x, y))
        moments = xp.mean(x * x, axis=-2) * xp.mean(y * y, axis=-2)
        best = self._best(on_host(moments))
        return with_values(self, fitted=Fitted(as_like(best[..., None, None], moments)))

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """Logs and signs of the factors, each times the exponents."""
        return 2.0 * (n + l) * num_projections * d

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        xp = array_namespace(x)
        uniform = xp.asarray(sample.extra, dtype=xp.float64)
        if self.fitted is None:
            parameter = as_like(np.full((1, 1), self.parameter(x.shape[-1])), uniform)
        else:
            parameter = self.fitted.values
        w = self._exponents(uniform, parameter)
        log_weights = xp.astype(self._log_weights(parameter, w)[..., None, :], x.dtype)
        powers = xp.astype(w, x.dtype).mT
        zero, negative = x == 0, xp.astype(x < 0, x.dtype)
        halves = negative @ (0.5 * powers)  # whole where the number of negative factors is even
        values = 1.0 - 4.0 * (halves - xp.floor(halves))
        log_scale = xp.log(xp.abs(x) + xp.astype(zero, x.dtype)) @ powers - 0.5 * log_weights
        if bool(xp.any(zero)):  # 0^w = 0, but for w = 0
            vanishes = xp.astype(zero, x.dtype) @ xp.astype(powers > 0, x.dtype) > 0
            values, log_scale = xp.where(vanishes, 0.0, values), xp.where(vanishes, -xp.inf, log_scale)
        return (Features(values, log_scale),)

    def parameter(self, head_dim: int) -> float:
        """The value fitted to one head; else the given one, or the best for standard normal queries and keys."""
        if self.fitted is not None:
            return float(on_host(self.fitted.values).item())
        given = self._given()
        return float(self._best(np.full(head_dim, 1.0 / head_dim))) if given is None else given

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return np.exp(x @ y.T)


@dataclass(frozen=True)
class Poisson(_IntegerMap):
    """phi(x) = exp(rate d / 2) prod_l x_l^(w_l) rate^(-w_l / 2) / sqrt(R), w_l ~ Poisson(rate), integer exponents.

    The log of the second moment of a pair is rate d + sum_l (x_l y_l)^2 / rate. Its mean over all pairs is smallest at
    rate = sqrt(mean over l of E x_l^2 E y_l^2), which is what is fitted, at most MEAN_LIMIT; without data d^-1/2, right
    for standard normal queries and keys. Good where the coordinates of queries and keys agree in sign; where their
    signs are random the normalisers may be negative.
    Likhosherstov et al. 2022, "Chefs' Random Tables", arXiv 2205.15317 (DIRF).
    """

    rate: float | None = positive(None, most=MEAN_LIMIT, otherwise="left out to be fitted")
    name = "poisson"
    reference = "Likhosherstov et al. 2022, arXiv 2205.15317 (Poisson)"

    def _given(self) -> float | None:
        return self.rate

    def _best(self, moments: np.ndarray) -> np.ndarray:
        return np.asarray(np.clip(np.sqrt(np.mean(moments, axis=-1)), np.finfo(float).tiny, MEAN_LIMIT))

    def _exponents(self, uniform: Array, parameter: Array) -> Array:
        xp = array_namespace(uniform)
        w, mass = xp.zeros_like(uniform + parameter), xp.exp(-parameter)
        total, largest = mass, float(xp.max(parameter))
        for k in range(1, int(largest + 12.0 * math.sqrt(largest) + 20.0)):  # what lies beyond has less than 2^-53
            above = uniform > total
            if not bool(xp.any(above)):
                break
            w = w + xp.astype(above, w.dtype)
            mass = mass * parameter / k
            total = total + mass
        return w

    def _log_weights(self, parameter: Array, exponents: Array) -> Array:
        xp = array_namespace(exponents)
        return xp.sum(exponents * xp.log(parameter) - parameter, axis=-1)

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        """Under the rate of ``parameter``."""
        rate = self.parameter(x.shape[-1])
        return np.expm1(rate * x.shape[-1] + (x * x) @ (y * y).T / rate - 2.0 * (x @ y.T)) / num_projections


@dataclass(frozen=True)
class Geometric(_IntegerMap):
    """phi(x) = p^(-d/2) prod_l x_l^(w_l) (1 - p)^(-w_l / 2) / sqrt(w_l!) / sqrt(R), P(w_l = k) = p (1 - p)^k.

    The log of the second moment of a pair is sum_l log I0(2 |x_l y_l| / sqrt(1 - p)) - d log p. What is fitted is the p
    that makes it smallest with (x_l y_l)^2 replaced by its mean over all pairs, E x_l^2 E y_l^2: since log I0(2 sqrt t)
    is concave, that bounds the mean from above, and costs O(length d). Without data as for standard normal queries and
    keys; the mean exponent is at most MEAN_LIMIT. At its best a little better than ``poisson``.
    Likhosherstov et al. 2022, "Chefs' Random Tables", arXiv 2205.15317 (DIRF).
    """

    p: float | None = between(1.0 / MEAN_LIMIT, 1.0, default=None)
    name = "geometric"
    reference = "Likhosherstov et al. 2022, arXiv 2205.15317 (geometric)"

    def _given(self) -> float | None:
        return self.p

    def _best(self, moments: np.ndarray) -> np.ndarray:
        best = [_best_p(row) for row in moments.reshape(-1, moments.shape[-1])]
        return np.array(best).reshape(moments.shape[:-1])

    def _exponents(self, uniform: Array, parameter: Array) -> Array:
        xp = array_namespace(uniform)
        return xp.floor(xp.log(1.0 - uniform) / xp.log1p(-parameter))

    def _log_weights(self, parameter: Array, exponents: Array) -> Array:
        xp = array_namespace(exponents)
        factorials = take_from(scipy.special.gammaln(np.arange(1.0, float(xp.max(exponents)) + 2.0)), exponents)
        return xp.sum(factorials + exponents * xp.log1p(-parameter) + xp.log(parameter), axis=-1)

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        """Under the p of ``parameter``."""
        products = x[:, None, :] ** 2 * y**2
        return np.expm1(_log_second_moment(self.parameter(x.shape[-1]), products) - 2.0 * (x @ y.T)) / num_projections


def _log_second_moment(p: float, squares: np.ndarray) -> Any:
    """sum_l log I0(2 |x_l y_l| / sqrt(1 - p)) - d log p for (x_l y_l)^2, (..., d)."""
    argument = 2.0 * np.sqrt(squares / (1.0 - p))
    return np.sum(np.log(scipy.special.i0e(argument)) + argument - math.log(p), axis=-1)


def _best_p(squares: np.ndarray) -> float:
    """The p of least second moment, by a bounded search in its log odds, to three decimals.

    The minimum is flat: the digits beyond are those of rounding, and would differ from one array library to the next.
    """
    low, high = -math.log(MEAN_LIMIT - 1.0), 20.0

    def moment(log_odds: float) -> float:
        return float(_log_second_moment(float(scipy.special.expit(log_odds)), squares))

    minimum = scipy.optimize.minimize_scalar(moment, bounds=(low, high), method="bounded")
    return float(scipy.special.expit(round(float(minimum.x), 3)))
