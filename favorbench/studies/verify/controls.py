"""Known mistakes, each claimed to be right: a verification that misses one of them proves nothing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from favorbench.maps import FeatureMap, Sample, get_map
from favorbench.maps.base import WrappedMap
from favorbench.maps.random_features import Hyperbolic, Positive
from favorbench.numerics.arrays import Array, Features, array_namespace
from favorbench.numerics.machine import one_core
from favorbench.samplers import Sampler, get_sampler
from favorbench.samplers.coupling import INDEPENDENT, ORTHOGONAL
from favorbench.samplers.orthogonal import Orthogonal
from favorbench.studies.verify import attention, kernel, laws
from favorbench.studies.verify.checks import REFUTED, Check, judged


class Caught(NamedTuple):
    """A control: its name, its checks, and whether one of them refuted it."""

    control: str
    mistake: str
    caught_by: Check | None


@dataclass(frozen=True)
class ClaimedMap(WrappedMap):
    """A map, with the claim that it estimates the softmax kernel."""

    name = "claimed"
    nonnegative = False
    unbiased = True

    target_kernel = Positive.target_kernel

    def covariance(self, x: Array, y: Array) -> Array | None:
        return None


class _GaussianClaim(Sampler):
    """The declarations that the broken samplers share: rows N(0, I), independent."""

    reference = "-"
    gaussian_rows = True
    coupling = INDEPENDENT


@dataclass(frozen=True)
class ClaimedSampler(_GaussianClaim):
    """A sampler, with the claim that its rows are N(0, I)."""

    wrapped: Sampler
    name = "claimed"
    nested = False

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        return self.wrapped.sample(rng, num_projections, head_dim)


class _PositiveVariant(FeatureMap):
    """The declarations that the broken variants of positive and hyperbolic share."""

    reference = "-"
    features_per_projection = 1
    nonnegative = True
    unbiased = True

    target_kernel = Positive.target_kernel


@dataclass(frozen=True)
class PerKeyRowMax(_PositiveVariant):
    """Each key shifted by its own largest feature, which does not cancel (only one shift for all keys does)."""

    name = "per-key-row-max"
    features = Positive.features

    def key_features(self, x: Array, projection: Array, sample: Sample) -> tuple[Features, ...]:
        (block,) = self.features(x, projection, sample)
        xp = array_namespace(projection)
        return (block.times(-xp.max(block.log_scale, axis=-1, keepdims=True)),)


@dataclass(frozen=True)
class MissingNormalisation(_PositiveVariant):
    """positive without 1/sqrt(R)."""

    name = "missing-1/sqrt(R)"

    def features(self, x: Array, projection: Array, sample: Sample) -> tuple[Features, ...]:
        (block,) = Positive().features(x, projection, sample)
        return (block.times(0.5 * math.log(projection.shape[-1])),)


@dataclass(frozen=True)
class HyperbolicHalf(_PositiveVariant):
    """hyperbolic with 1/2 for 1/sqrt 2."""

    name = "hyperbolic-half"
    features_per_projection = 2

    def features(self, x: Array, projection: Array, sample: Sample) -> tuple[Features, ...]:
        blocks = Hyperbolic().features(x, projection, sample)
        return tuple(block.times(-0.5 * math.log(2.0)) for block in blocks)


@dataclass(frozen=True)
class ChiSquareNorms(_GaussianClaim):
    """Directions right, norms chi-square(1)."""

    name = "chi-square(1)-norms"

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        directions, norms = rng.spawn(2)
        rows = directions.standard_normal((num_projections, head_dim))
        return laws.unit(rows) * norms.chisquare(1, size=(num_projections, 1))


@dataclass(frozen=True)
class RepeatedBlocks(_GaussianClaim):
    """One orthogonal block, over and over."""

    name = "repeated-blocks"
    coupling = ORTHOGONAL

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        blocks = -(-num_projections // head_dim)
        return np.tile(Orthogonal().sample(rng, head_dim, head_dim), (blocks, 1))[:num_projections]


CONTROLS: dict[str, tuple[FeatureMap | Sampler, str]] = {
    "trig-blog": (ClaimedMap(get_map("trig-blog")), "2 pi inside sin and cos"),
    "trig-tutorial": (ClaimedMap(get_map("trig-tutorial")), "exp(-|x|^2/2) with cos and sin"),
    "exp-tutorial": (ClaimedMap(get_map("exp-tutorial")), "exp(w.x) without exp(-|x|^2/2)"),
    "positive-eps": (ClaimedMap(get_map("positive-eps")), "eps added after the shifts"),
    "orthogonal-qr": (ClaimedSampler(get_sampler("orthogonal-qr")), "QR without the sign correction"),
    "orthogonal-blog": (ClaimedSampler(get_sampler("orthogonal-blog")), "rows of norm sqrt(d/R)"),
    "chi-square(1)-norms": (ChiSquareNorms(), "norms of another law"),
    "repeated-blocks": (RepeatedBlocks(), "blocks that are not independent"),
    "per-key-row-max": (PerKeyRowMax(), "each key shifted by its own maximum"),
    "missing-1/sqrt(R)": (MissingNormalisation(), "no normalisation by R"),
    "hyperbolic-half": (HyperbolicHalf(), "1/2 for 1/sqrt 2"),
}

DRAWS = 500


def run(seed: int = 0, draws: int = DRAWS) -> Iterator[Caught]:
    """Test the claim of every control that it is right."""
    for name, (member, mistake) in CONTROLS.items():
        refuted = [check for check in checks(member, draws, seed) if check.verdict == REFUTED]
        yield Caught(name, mistake, max(refuted, key=Check.excess) if refuted else None)


def checks(member: FeatureMap | Sampler, draws: int, seed: int) -> list[Check]:
    """Everything that ``verify`` would ask of one map (under iid rows) or one sampler (with positive and trig)."""
    with one_core(), np.errstate(all="ignore"):  # what fails to be a number is a measurement here
        if isinstance(member, Sampler):
            maps = [get_map("positive"), get_map("trig")]
            measured = laws.measure(member, 5 * draws, seed) + kernel.measure(member, maps, draws, seed)
        else:
            iid = get_sampler("iid")
            measured = kernel.measure(iid, [member], draws, seed) + attention.measure([member], iid, seed)
    return judged(measured)
