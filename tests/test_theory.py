"""Closed forms against the tables of MATHS.md, quadrature, sampling, and the gate."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from favorbench.errors import ScenarioError
from favorbench.figures import theory as theory_figure
from favorbench.maps import get_map
from favorbench.samplers import get_sampler
from favorbench.samplers.laws import AtAngle, FixedNormRows
from favorbench.theory import _pair, draws_needed, projections_for, relative_variance, study

# Exact relative variances at equal num_features = 2d, x.y = 0, |x + y|^2 = |x - y|^2 = v2: trig iid, trig orthogonal,
# phase iid, positive iid, positive orthogonal, hyperbolic orthogonal.
TABLE = {
    (16, 0.25): (1.96e-3, 2.95e-4, 2.1e-2, 8.9e-3, 8.1e-3, 3.8e-4),
    (16, 1.0): (3.4e-2, 5.4e-3, 5.9e-2, 5.4e-2, 4.2e-2, 1.1e-2),
    (16, 4.0): (1.64, 1.10, 1.68, 1.67, 1.54, 1.38),
    (16, 8.0): (93, 92, 93, 93, 93, 92.5),
    (64, 1.0): (8.5e-3, 8.3e-4, 1.5e-2, 1.3e-2, 9.8e-3, 1.3e-3),
    (64, 4.0): (0.41, 0.28, 0.42, 0.42, 0.37, 0.31),
    (64, 16.0): (6.9e4,) * 6,
}
COLUMNS = (("trig", "iid", 1), ("trig", "orthogonal", 1), ("phase", "iid", 2), ("positive", "iid", 2),
           ("positive", "orthogonal", 2), ("hyperbolic", "orthogonal", 1))  # fmt: skip


@pytest.mark.parametrize(("dim", "v2"), TABLE)
def test_relative_variances_are_the_tabulated_ones(dim, v2):
    x, y = _pair(math.sqrt(v2 / 2), dim, 0.0)
    for (name, sampler, times), expected in zip(COLUMNS, TABLE[dim, v2], strict=True):
        found = relative_variance(get_map(name), get_sampler(sampler), x, y, times * dim)
        assert found is not None
        digits = 3 if f"{expected:.2e}"[3] != "0" else 2  # as many as are printed
        assert float(found[0, 0]) == pytest.approx(expected, rel=0.5 * 10.0 ** (1 - digits) * 1.2)


@pytest.mark.parametrize("dim", [2, 3, 8])
@pytest.mark.parametrize("v2", [0.3, 1.0, 4.0])
def test_the_orthogonal_pair_term_is_the_integral(dim, v2):
    """E exp((w1 + w2).z) for orthogonal rows with independent chi norms: w1 + w2 has length hypot, a free direction."""
    chi, sphere = stats.chi(dim), FixedNormRows(1.0)

    def integrand(r1, r2):
        along = np.zeros((1, dim))
        along[0, 0] = math.hypot(r1, r2) * math.sqrt(v2)
        return chi.pdf(r1) * chi.pdf(r2) * float(sphere.laplace(along)[0])

    expected, _ = integrate.dblquad(integrand, 0, 14, 0, 14, epsabs=1e-10, epsrel=1e-10)
    assert float(AtAngle(dim).sum(np.array(v2))) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("sampler", ["iid", "orthogonal"])
@pytest.mark.parametrize("name", ["trig", "positive", "hyperbolic", "phase"])
def test_the_needed_projections_are_the_smallest(name, sampler):
    x, y = _pair(0.8, 8, 0.3)
    feature_map, law = get_map(name), get_sampler(sampler)
    needed = projections_for(feature_map, law, x, y, 0.2)
    assert needed is not None
    assert float(relative_variance(feature_map, law, x, y, needed)[0, 0]) <= 0.04
    assert needed == 1 or float(relative_variance(feature_map, law, x, y, needed - 1)[0, 0]) > 0.04


def test_the_gate_is_the_documented_number_of_draws():
    """30 / Phi(-2 v): 1.3e3 at v2 = 1, 9.5e5 at 4, 3.9e9 at 8; 30 for bounded maps."""
    for v2, draws in ((1.0, 1.3e3), (2.0, 1.3e4), (4.0, 9.5e5), (8.0, 3.9e9)):
        x, y = _pair(math.sqrt(v2 / 2), 16, 0.0)
        assert float(draws_needed(get_map("positive"), x, y)[0, 0]) == pytest.approx(draws, rel=0.05)
        assert float(draws_needed(get_map("trig"), x, y)[0, 0]) == 30.0


def test_beyond_the_gate_no_number_is_shown():
    found = study(get_map("positive"), get_sampler("iid"), 8, [0.5, 2.0], [16], draws=500)
    inside, beyond = found.points
    assert inside.low < inside.closed_form < inside.high or abs(inside.measured / inside.closed_form - 1) < 0.3
    assert math.isnan(beyond.measured) and math.isfinite(beyond.closed_form)
    # why there is a gate: what sampling would have shown there is far too small
    from favorbench.theory import measured_deviation

    x, y = _pair(2.0, 8, 0.0)
    shown, _, high = measured_deviation(get_map("positive"), get_sampler("iid"), x, y, 16, 500, 0)
    assert high < 0.8 * beyond.closed_form and shown < 0.5 * beyond.closed_form


def test_what_has_no_closed_form_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match="no closed form for trig-blog under iid"):
        study(get_map("trig-blog"), get_sampler("iid"), 8, [0.5], [16])
    found = study(get_map("trig"), get_sampler("orthogonal"), 8, [0.5, 1.0], [16, 64], draws=100)
    assert {f.suffix for f in theory_figure.draw(found, "theory", tmp_path)} == {".png", ".svg", ".csv"}
