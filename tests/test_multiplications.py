"""What maps, methods and baselines say they cost, against the matrix products they really do."""

import math

import numpy as np
import pytest

import favorbench as fb
from favorbench.attention.estimator import Estimator
from favorbench.attention.linear import attention_estimates, sample_omega
from favorbench.baselines import get_baseline
from favorbench.maps import MAPS, TRANSFORMS
from favorbench.methods import METHODS, PREFIXES, Question, Shape, get_method
from favorbench.numerics.streams import Streams
from tests.counted import counted, counting

N, D, D_V, SIZE = 2048, 16, 12, 64


@pytest.fixture(scope="module")
def tokens():
    rng = np.random.default_rng(0)
    return [counted(rng.normal(size=(N, width))) for width in (D, D, D_V)]


def test_arrays_are_counted():
    """A product of (3, 4) and (4, 5) has 60 multiplications; one that is not counted would hide a method's work."""
    a, b = counted(np.ones((3, 4))), np.ones((4, 5))
    with counting() as found:
        _ = np.where(a > 0, a, a)[:, :2] @ b[:2]  # what comes of an array is counted too
        _ = a @ b
    assert found == [30 + 60]


@pytest.mark.parametrize(
    "spec", [m.name for m in MAPS] + [f"{t.prefix}:positive" for t in TRANSFORMS] + ["taylor(order=3)"]
)
def test_a_map_does_the_products_it_says(tokens, spec):
    """The ones beside the values are a column of theirs. maclaurin: in the mean over draws of the largest degree."""
    feature_map = fb.get_map(spec)
    query, key, value = (part[:400] * 0.5 for part in tokens)
    ratios = []
    for seed in range(30 if spec == "maclaurin" else 1):
        sample = sample_omega("orthogonal", 24, D, np.random.default_rng(seed), map=feature_map)
        size = 1 if feature_map.randomness == "none" else 24
        extra = None if sample.extra is None else counted(sample.extra)
        estimator = Estimator(feature_map, extra, (size,))
        with counting() as found:
            list(attention_estimates(query, key, value, counted(sample.omega[:size]), [estimator]))
        declared = feature_map.multiplications(400, 400, D, D_V + 1, size)
        assert declared is not None
        ratios.append(found[0] / declared)
    fitted = 10.0 * (24 + D) * D * D / (800 * 24 * (2 * D + D_V + 1))  # some d x d and R x d matrices, once
    spread = 4.0 * np.std(ratios) / math.sqrt(len(ratios))
    assert 1.0 - spread - 1e-9 <= np.mean(ratios) <= 1.0 + spread + fitted


#: What is not exact, and by how much: keys that are attended exactly are "about" as many as multipole says; blocks of
#: queries at the edges have smaller windows; top makes features of keys once for each tile of queries; in those below
#: the sums of rows are a column of their own in some products only.
ABOUT = {"multipole": 0.15, "window": 0.15, "top": 0.1, "nystromformer": 0.02, "monarch": 0.05, "thinformer": 0.02,
         "eva": 0.05, "kdeformer": 0.02}  # fmt: skip
#: Work that is no matrix product of ours, and so is not counted: factorisations, solutions, gathers.
NOT_COUNTED = {"best-rank", "wildcat", "nystrom", "top-keys"}
SPECS = [
    *(member.name for member in METHODS), "clusters(order=2)", "clusters(lloyd=3)", "multipole(exact=0.25)",
    *(f"{prefix.prefix}(8):{inside}" for prefix in PREFIXES for inside in ("clusters", "multipole", "trig")),
    "sinks(4):window(64):clusters", "sampled-keys", "sampled-keys(weights='values')",
]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_a_method_does_the_products_it_says(tokens, spec, causal):
    method = get_baseline(spec) if spec.startswith("sampled") else get_method(spec)
    if spec in NOT_COUNTED or (causal and not method.causal_safe):
        return
    question = Question(*tokens, np.arange(N), causal)
    with counting() as found:
        list(method.answers(question, (SIZE,), Streams.of(np.random.default_rng(1))))
    declared = method.multiplications(Shape(N, N, D, D_V + 1, causal), SIZE)
    assert declared is not None
    about = max((share for name, share in ABOUT.items() if name in spec), default=0.05 if causal else 1e-9)
    assert found[0] == pytest.approx(declared, rel=about)
