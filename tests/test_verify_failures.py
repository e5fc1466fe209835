"""NaN refutes a claim, a missing declaration does not, and claims that verify cannot test are refused."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from favorbench.errors import ScenarioError
from favorbench.formats import plain
from favorbench.maps import get_map
from favorbench.maps.random_features import Positive
from favorbench.methods import Clusters
from favorbench.numerics.arrays import Features
from favorbench.samplers import Sampler, get_sampler
from favorbench.samplers.coupling import INDEPENDENT, WORDS, Blocks, Coupling, EvenlySpread, OppositePairs
from favorbench.studies.theory import study
from favorbench.studies.verify import REFUTED, laws, methods, verify
from favorbench.studies.verify.checks import HOLDS, NO_CLAIM, NOT_MEASURABLE, MeasuredClaim, judged, largest, merged
from favorbench.studies.verify.controls import checks
from favorbench.studies.verify.laws import Rows
from tests.command_line import in_a_process


@dataclass(frozen=True)
class Failing(Positive):
    """``positive``, but for what ``change`` makes of some features."""

    change: str = ""
    name: ClassVar[str] = "failing"

    def features(self, x, projection, sample):
        (block,) = super().features(x, projection, sample)
        log = block.log_scale
        match self.change:
            case "nan where a projection is small":
                log = np.where(projection < -1.2, np.nan, log)
            case "nan in one projection of one point":
                log = np.where(np.arange(log.shape[-1]) + np.arange(log.shape[-2])[:, None] == 0, np.nan, log)
            case "inf at large norms":
                log = np.where(np.sum(x * x, axis=-1, keepdims=True) > 100.0, np.inf, log)
            case "zero":
                return (Features(np.zeros_like(log), np.zeros_like(log)),)
            case "relative to their sum":
                log = log - np.log(np.sum(np.exp(log - np.max(log)), axis=-1, keepdims=True))
            case "minus":
                return (Features(-np.ones_like(log), log),)
        return (Features(None, log),)


@pytest.mark.parametrize(
    "change",
    ["nan where a projection is small", "nan in one projection of one point", "inf at large norms", "zero", "minus"],
)
def test_features_that_fail_are_refuted(change):
    found = checks(Failing(change), 300, seed=0)
    assert REFUTED in {check.verdict for check in found}
    assert REFUTED not in {check.verdict for check in checks(Failing("nothing"), 300, seed=0)}  # the control


def test_features_that_depend_on_the_number_of_projections_are_refuted():
    """Sweeps take those of R projections from those of the largest R; verify took both from there."""
    found = {check.claim: check for check in checks(Failing("relative to their sum"), 300, seed=0)}
    assert found["stabilisers cancel"].verdict == found["causal equals masked"].verdict == REFUTED
    assert "right at the largest R: unless features of fewer are the first" in found["stabilisers cancel"].detail


@dataclass(frozen=True)
class Declaring(Positive):
    """``positive`` with another declared variance or target."""

    declared: str = ""
    name: ClassVar[str] = "declaring"

    def relative_variance(self, x, y, num_projections):
        right = super().relative_variance(x, y, num_projections)
        return {
            "nan": np.nan * right,
            "nan at one pair": np.where(np.arange(right.size).reshape(right.shape) == 3, np.nan, right),
            "0": 0.0 * right,
            "negative": -right,
            "infinite": np.inf + right,
        }.get(self.declared, right)

    def pair_argument(self, x, y):
        return super().pair_argument(x, y) + 1000.0 * self.declared.startswith("far too large")

    def target_kernel(self, x, y, rows):
        right = super().target_kernel(x, y, rows)
        corner = np.arange(right.size).reshape(right.shape) == 0
        return {
            "target nan": np.nan * right,
            "target nan at one pair": np.where(corner, np.nan, right),
            "target infinite at one pair": np.where(corner, np.inf, right),
            "far too large, target nan at one pair": np.where(corner, np.nan, right),
        }.get(self.declared, right)


def verdicts(declared):
    return {check.claim: (check.verdict, check.detail) for check in checks(Declaring(declared), 300, seed=0)}


@pytest.mark.parametrize("declared", ["nan", "nan at one pair", "0", "negative", "infinite"])
def test_a_declared_variance_that_is_none_is_refuted_without_a_crash(declared):
    found = verdicts(declared)
    assert found["variance"][0] == REFUTED and found["target"][0] == HOLDS


@pytest.mark.parametrize(
    "declared", ["target nan at one pair", "target infinite at one pair", "far too large, target nan at one pair"]
)
def test_a_target_that_is_a_number_at_some_pairs_only_is_refuted(declared):
    assert verdicts(declared)["target"][0] == REFUTED


def test_a_method_is_asked_for_no_size_beyond_its_largest():
    class Few(Clusters):
        name, exact_at_full_size = "few", False

        def largest_size(self, shape):
            return 3

        def estimates(self, problem, sizes, streams):
            assert max(sizes) <= 3
            return super().estimates(problem, sizes, streams)

    assert {check.verdict for check in judged([*methods.of_method(Few(), seed=0)])} == {HOLDS}


def test_undeclared_or_unmeasurable_claims_are_named_and_not_refuted():
    nothing = verdicts("target nan")
    assert nothing["target"][0] == NO_CLAIM and nothing["target"][1].startswith("nothing declared")
    assert REFUTED not in {verdict for verdict, _ in nothing.values()}
    hopeless = verdicts("far too large")
    assert hopeless["variance"] == (NOT_MEASURABLE, "no pair inside the gate")
    assert verdicts("as it is")["variance"][0] == HOLDS


@pytest.mark.parametrize("spec", ["oprf(rho=0.01)", "poisson(rate=5)", "geometric(p=0.05)"])
def test_right_maps_with_rare_large_estimates_are_not_refuted(spec):
    """Too few draws see the rare ones: means looked wrong by 1e11 standard errors."""
    found = {check.claim: check.verdict for check in checks(get_map(spec), 1500, seed=0)}
    assert REFUTED not in found.values() and found["target"] in (HOLDS, NOT_MEASURABLE)


def test_a_nan_statistic_is_refuted():
    def verdict(statistic, tests=1):
        return judged([MeasuredClaim("a", "b", statistic, tests)])[0]

    assert [verdict(s).verdict for s in (0.0, np.nan, np.inf, 100.0)] == [HOLDS, REFUTED, REFUTED, REFUTED]
    assert (verdict(None).verdict, verdict(None).threshold) == (NO_CLAIM, None)
    written = plain(verdict(np.nan))
    assert written["statistic"] is None and written["verdict"] == REFUTED
    assert verdict(np.nan).excess() == np.inf and verdict(None).excess() == 0.0
    assert largest([1.0, np.nan]) == np.inf and largest([np.nan, 1.0]) == np.inf
    assert largest([]) == 0.0 and largest([-3.0, 2.0]) == 3.0 and largest(-np.inf) == np.inf


def test_merged_measurements_keep_the_worst():
    several = [MeasuredClaim("a", "b", 1.0, 3, "fine"), MeasuredClaim("a", "b", np.nan, 4, "failed"),
               MeasuredClaim("a", "b", 9.0, 5, "poor"), MeasuredClaim("a", "c", 0.5, 0, "alone")]  # fmt: skip
    found = merged([(f"d = {d}", measurement) for d, measurement in zip((1, 2, 3, 1), several, strict=True)])
    assert [(m.claim, m.tests, m.detail) for m in found] == [("b", 12, "d = 2: failed"), ("c", 0, "alone")]


USERS = """
import dataclasses
import numpy as np
from favorbench import Sampler
from favorbench.maps.random_features import Positive
from favorbench.methods import Clusters
from favorbench.numerics.arrays import Features

@dataclasses.dataclass(frozen=True)
class NaN(Positive):
    name = "nan-map"
    def features(self, x, projection, sample):
        return (Features(np.log(projection), projection),)

@dataclasses.dataclass(frozen=True)
class Same(Sampler):
    name, reference, gaussian_rows, coupling = "same", "-", True, {coupling!r}
    def sample(self, rng, num_projections, head_dim):
        return np.tile(rng.standard_normal((1, head_dim)), (num_projections, 1))
"""


def verified(subject, coupling="independent"):
    Path("users.py").write_text(USERS.replace("{coupling!r}", repr(coupling)))
    return in_a_process(f"verify users:{subject} --draws 500 -q")


def test_nan_exits_1_and_no_warning_reaches_the_terminal():
    done = verified("NaN/iid")
    assert done.returncode == 1 and done.stderr == "" and "REFUTED" in done.stdout


def test_rows_that_are_one_row_are_refuted():
    done = verified("Same")
    assert done.returncode == 1 and done.stderr == ""
    assert "blocks are independent" in done.stdout and "REFUTED" in done.stdout


def test_an_unknown_coupling_is_one_clear_line():
    done = verified("Same", "independant")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "unknown coupling 'independant' (did you mean 'independent'?); allowed: 'independent', " in done.stderr


@pytest.mark.parametrize("coupling", ["", "low-discrepancy", "antithetic", 3, Coupling])
def test_a_coupling_that_verify_cannot_test_cannot_be_stated(coupling):
    with pytest.raises(ScenarioError, match="unknown coupling"):
        type("Stated", (Sampler,), {"coupling": coupling})


def test_a_sampler_without_a_coupling_cannot_be_built():
    @dataclass(frozen=True)
    class Silent(Sampler):
        def sample(self, rng, num_projections, head_dim):
            raise AssertionError

    with pytest.raises(ScenarioError, match="sampler Silent states no coupling; allowed: 'independent', 'orthogonal'"):
        Silent()


def test_a_kind_of_coupling_without_a_test_is_an_error():
    class Other(Coupling):
        def __str__(self):
            return "other"

    rows = Rows("a", np.ones((2, 4, 1)))
    with pytest.raises(ScenarioError, match="verify knows no test of the coupling"):
        list(laws.measure_coupling(rows, Other(), get_sampler("iid").row_law(4, 1)))


def test_rows_of_opposite_pairs_of_opposite_pairs_are_enough():
    """A quarter of the rows is left to the innermost coupling, which looks at two blocks of them."""
    assert verify(["antithetic:antithetic:orthogonal"], draws=100).refuted == ()


def test_words_are_those_of_the_catalogue():
    assert {str(coupling) for coupling in WORDS.values()} == set(WORDS)
    assert str(OppositePairs(INDEPENDENT)) == "antithetic" and str(EvenlySpread(lambda d: (2,))) == "low-discrepancy"
    assert get_sampler("orthogonal").coupling == Blocks("orthogonal") != get_sampler("sorf").coupling
    assert get_sampler("antithetic:simplex").coupling == OppositePairs(Blocks("simplex"))


def test_no_warning_comes_from_where_nothing_can_be_computed():
    """Warnings are errors here: exp(900) in closed form, and estimated."""
    for map, sampler in (("positive", "iid"), ("trig", "orthogonal"), ("hyperbolic", "norm-coupled")):
        found = study(get_map(map), get_sampler(sampler), 16, [30.0, 100.0], [16], draws=3)
        assert len(found.points) == 2 and found.needed == {30.0: None, 100.0: None}


def test_verify_leaves_the_callers_threads_as_they_were():
    import threadpoolctl

    def threads():
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]

    seen, before = [], threads()
    verify(["taylor/iid"], draws=100, progress=lambda done, steps, name: seen.append(threads()))
    assert threads() == before and seen and all(set(inside) == {1} for inside in seen)
    assert get_map("taylor").name == "taylor"
