"""Shared by all maps: claims that follow from parameters, wrappers, equality, features counted beforehand."""

import dataclasses
import pickle
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest

import favorbench as fb
from favorbench.maps import MAPS, get_map
from favorbench.maps.base import WrappedMap
from favorbench.maps.transforms import Centre


@dataclass(frozen=True)
class Safe(WrappedMap):
    """States what the map inside does not."""

    causal_safe: ClassVar[bool] = True
    nested: ClassVar[bool] = True


CLAIMS = [
    ("oprf", "causal_safe", False), ("oprf(rho=0.5)", "causal_safe", True), ("poisson", "causal_safe", False),
    ("poisson(rate=0.5)", "causal_safe", True), ("geometric", "causal_safe", False),
    ("geometric(p=0.5)", "causal_safe", True), ("hybrid", "features_per_projection", 20),
    ("hybrid(n=1)", "features_per_projection", 8), ("tensorsketch", "features_per_projection", 3),
    ("tensorsketch(degree=6, exact=2)", "features_per_projection", 5), ("centre:oprf(rho=0.5)", "causal_safe", False),
    ("centre:tensorsketch", "own_sample", True), ("centre:hyperbolic", "even", True),
    ("centre:trig", "asymmetric", True),
]  # fmt: skip


@pytest.mark.parametrize("spec, claim, value", CLAIMS)
def test_claims_follow_from_the_parameters_and_nothing_else(spec, claim, value):
    member = get_map(spec)
    assert getattr(member, claim) == value
    assert getattr(pickle.loads(pickle.dumps(member)), claim) == value
    assert claim not in vars(member)  # it is computed, not stored beside the fields
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(member, claim, not value)


@pytest.mark.parametrize("member", MAPS, ids=lambda m: m.name)
def test_a_class_has_the_claims_of_its_default_parameters(member):
    for claim in ("features_per_projection", "causal_safe", "own_sample", "nested", "unbiased", "nonnegative", "even"):
        assert getattr(member, claim) == getattr(member(), claim)


def test_a_wrapper_overrides_some_claims_and_inherits_the_rest():
    inside = get_map("positive-eps")
    assert not inside.causal_safe and not inside.nested
    safe = Safe(inside)
    assert safe.causal_safe and safe.nested
    assert (safe.name, safe.nonnegative, safe.unbiased) == ("positive-eps", True, False)
    assert not Safe(get_map("trig")).nonnegative and Safe(get_map("trig")).even
    assert not Centre(safe).causal_safe and Centre(safe).name == "centre:positive-eps"
    assert not hasattr(Safe, "even")  # a class has no map inside


@pytest.mark.parametrize("spec", ["oprf", "aderf-sderf", "poisson", "geometric", "positive-eps", "centre:positive"])
def test_maps_fitted_to_different_data_are_different_maps(spec, rng):
    x, y, omega = rng.normal(size=(3, 9, 4))
    plain = get_map(spec)
    first, second = plain.fit(x, y, omega), plain.fit(2.0 * x, y, omega)
    assert plain != first != second and first == first and plain == get_map(spec)
    assert len({plain, first, second, get_map(spec)}) == 3


@pytest.mark.parametrize("name", [m.name for m in MAPS])
def test_the_features_that_are_counted_are_those_that_come(name, rng):
    """At several d and R, in blocks: a fixed block has as many columns whatever R."""
    for head_dim, size in ((1, 4), (3, 6), (5, 2)):
        points = 0.5 * rng.normal(size=(7, head_dim))
        feature_map = get_map(name).with_parameters(points, points)
        sample = fb.sample_omega("iid", size, head_dim, rng, map=name)
        projection = points @ sample.omega.T
        blocks = feature_map.key_features(points, projection, sample)
        widths = [(b.log_scale if b.values is None else b.values).shape[-1] for b in blocks]
        assert sum(widths) == feature_map.num_features(size, head_dim)


HUGE = [
    ("taylor(order=12)", 64), ("taylor(order=30)", 4096), ("tensorsketch(degree=7, exact=6)", 4096),
    ("maclaurin(exact=6)", 4096), ("centre:taylor(order=20)", 1000),
]  # fmt: skip


@pytest.mark.parametrize("spec, head_dim", HUGE)
def test_features_are_counted_without_being_made(spec, head_dim):
    start = time.process_time()
    assert get_map(spec).num_features(1 << 20, head_dim) > 1e12
    assert time.process_time() - start < 0.1


def test_maps_of_users_may_have_the_names_of_hooks_of_version_0_2():
    class Old(type(get_map("positive"))):
        def own_products(self, n, l, head_dim, num_projections):  # noqa: E741
            return 7.0

    class New(type(get_map("positive"))):
        def map_multiplications(self, n, l, head_dim, num_projections):  # noqa: E741
            return 7.0

    old, new, ours = (one.multiplications(100, 200, 8, 6, 16) for one in (Old(), New(), get_map("positive")))
    assert old == new != ours
