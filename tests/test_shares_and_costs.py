"""Numbers that only a value by hand can see: shares of alpha, scales and parameters of single heads, stated costs.

Each of these faults once passed verify and all other tests.
"""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import favorbench as fb
from favorbench.attention.linear import linear_attention
from favorbench.baselines import BASELINES
from favorbench.inputs import get_input
from favorbench.maps import MAPS
from favorbench.methods import METHODS, Shape
from favorbench.methods.features import FromMap, LinearAttention
from favorbench.models.effects import ModelLayer
from favorbench.models.recorder import differences
from favorbench.models.replacements import replacement
from favorbench.studies.recommend.evidence import Rule, certified_bound, fewest_draws
from favorbench.studies.recommend.search import search
from tests.conftest import small_scenario
from tests.definitions import member
from tests.test_recommend import candidate

N, L, D, V, M = 100, 200, 8, 6, 16  # queries, keys, head dimension, value dimension, size
PAIR, ROWS = M * (D + V), N + L  # a logit and a weighted value for each of m; queries and keys

#: At this shape, by hand. eva asks for as many queries as keys.
METHOD_COSTS = {
    "uniform": 0,
    "taylor-1": ROWS * (1 + D) * V,
    "taylor-2": ROWS * (1 + D + D * (D + 1) // 2) * V,
    "sampled-keys": N * PAIR,
    "top-keys": N * L * D + N * M * V,
    "best-rank": 2 * N**3 + N * N * (L + V) + N * L * (D + V),
    "clusters": L * M * D + N * PAIR,
    "clusters(lloyd=2)": 3 * L * M * D + N * PAIR,
    "clusters(order=2)": L * M * D + N * PAIR + N * M * D,
    "sinks(4):clusters": (L - 4) * M * D + N * PAIR + N * 4 * (D + V),
    "multipole": L * (M // 2) * D + N * PAIR,
    # padding: half a cell, at most 8 exact keys, and 4 queries, to 104 in 13 blocks; a fourth of the queries choose
    # among 8 cells; near ones are left out
    "multipole(block=8)": L * 8 * D + 104 * (PAIR + 8 * (D + V)) + 26 * 8 * D - 104 * (D + V) * 16 / 25,
    # 3 levels to 8 cells, 6 products with a vector each; half a cell of 25 keys is above 8 exact keys, so none is near
    "multipole(block=8, cells='tree')": 6 * 3 * L * D + 104 * 8 * (D + V) + 26 * 8 * D,
    "nystrom": ROWS * PAIR + M * M * (V + 1) + M * M * D + M**3 // 2,
    "nystrom(guard='cells')": ROWS * PAIR + M * M * (V + 1) + M * M * D + M**3 // 2 + L * M * D + N * PAIR,
    "wildcat": ROWS * PAIR + M * M * (V + 1) + L * M * D + L * M * M // 2,
    "nystromformer": (ROWS + M) * PAIR + 6 * 4 * M**3,
    # 16 blocks of 7 queries and 13 keys; the first step needs no means of queries
    "monarch": (2 * (16 * 16 * 7 + 16 * 7 * 13) - 16 * 16 * 7) * D + (16 * 16 * 7 + 16 * 7 * 13) * V,
    "lara": ROWS * PAIR + M * M * D,
    "thinformer": N * PAIR + 3 * 1024 * (D + V),  # 128 keys: 16 buckets of 8, 4 of 16, 1 of 32
    # 25 blocks of 8 among 8 chunks of 25 keys. 16 blocks cut one in two: a query has 7 others, 2 rests, 8 keys;
    # 2 begin or end a chunk (1 rest); 7 lie in two chunks (6 others, 2 rests). The values of rests are made anew.
    "eva": L * (D + V) + 8 * (16 * 17 + 2 * 16 + 7 * 16) * (D + V) + (18 * (25 - 8) + 7 * (50 - 8)) * V,
    "hyperattention": N * PAIR + ROWS * D * 7,
    "kdeformer": N * PAIR + ROWS * D * 7 + L * V * V,
    # two groups of 64 queries with padding, and 50 blocks of 4 keys; vertical-slash asks for as many queries as keys
    **dict.fromkeys(("block-sparse", "spargeattn"), 2 * 50 * D + 128 * PAIR),
    "xattention": 128 * L * D // 4 + 128 * PAIR,
    "pbs-attn": 2 * (16 + 1) * L * D + 128 * PAIR,
    "pisa": 2 * 50 * D + 128 * 50 * (D + V) + 128 * PAIR,
    "pisa(order=1)": 2 * 50 * D + 128 * 50 * (2 * D + V) + 128 * PAIR + (128 + L) * D * V,
    "vertical-slash": 4 * 16 * L * D + 256 * PAIR,
}  # fmt: skip
LINEAR, DENSE = ROWS * M * (D + V), ROWS * (M * D + D * D)
MAP_COSTS = {
    **dict.fromkeys(("phase", "positive", "oprf", "relu", "exp-tutorial"), LINEAR),
    **dict.fromkeys(("trig", "hyperbolic", "trig-blog", "trig-tutorial"), LINEAR + ROWS * M * V),
    **dict.fromkeys(("saderf", "sderf"), LINEAR + DENSE),
    **dict.fromkeys(("aderf", "aderf-sderf"), LINEAR + DENSE + ROWS * D * D),
    **dict.fromkeys(("poisson", "geometric"), LINEAR + ROWS * M * D),
    "hybrid": ROWS * (M * D + 4 * D + 320 * V),
    "taylor": ROWS * (1 + D + D * (D + 1) // 2) * V,
    "elu": ROWS * D * V,
    "positive-eps": LINEAR + L * M * D,
}


@pytest.mark.parametrize("spec", METHOD_COSTS)
def test_a_method_states_the_cost_by_hand(spec):
    method = member(spec)
    shape = Shape(L if method.needs_positions else N, L, D, V)
    assert method.multiplications(shape, M) == METHOD_COSTS[spec]


def test_block_sparse_attention_states_its_causal_cost_by_hand():
    """300 keys: chunks of 128, 128 and 44 queries; the second sees 128 keys before it, the third 256.

    Blocks of 4 keys: 32 and 64 of them, for two groups of 64 queries and one of 44. Each chunk is exact on itself.
    """
    choice = (2 * 32 + 1 * 64) * D
    shape = Shape(300, 300, D, V, causal=True)
    own = 300 * 128 * (D + V)
    assert member("block-sparse").multiplications(shape, M) == own + choice + (128 + 44) * PAIR
    assert member("sinks(4):window(9):nothing").multiplications(shape, M) == own + 300 * (4 + 9) * (D + V)


#: The kernel estimate of 64 queries and the 73 keys around them: what a method repeats inside a window.
KERNEL_COSTS = {
    "sinks(4):nothing": 64 * 4 * D,
    "clusters": 64 * M * D,
    "clusters(order=2)": 2 * 64 * M * D,
    "sinks(4):clusters": 64 * M * D + 64 * 4 * D,
    "multipole": 64 * (M // 2) * D + 64 * 73 * D,
    "multipole(block=8)": (64 + 64 // 4) * (M // 2) * D + 64 * 73 * D,  # every fourth query votes
    "nystrom": (64 + 73) * M * D + 73 * M * M + 64 * 73 * (M + D),
    "nystrom(guard='cells')": (64 + 73) * M * D + 73 * M * M + 64 * 73 * (M + D) + 64 * M * D,
    "lara": (64 + 73) * M * D + 64 * 73 * M,
    "eva": 64 * (M // 2 + 73) * D,
    "sinks(4):positive": (64 + 73) * M * D + 64 * 73 * M + 64 * 4 * D,
    "sinks(4):trig": (64 + 73) * M * D + 64 * 73 * 2 * M + 64 * 4 * D,
    "sinks(4):centre:positive": (64 + 73) * (M + 1) * D + 64 * 73 * M + 64 * 4 * D,
    "sinks(4):aderf": (64 + 73) * (2 * M * D + D * D) + 64 * 73 * M + 64 * 4 * D,  # its moments are not taken again
    **dict.fromkeys(("thinformer", "sampled-keys", "block-sparse", "window(3):nothing"), 64 * 73 * D),
    "pisa(order=1)": 2 * 64 * 73 * D,
}  # fmt: skip


@pytest.mark.parametrize("spec", KERNEL_COSTS)
def test_windows_and_top_keys_state_the_cost_of_repeated_work_by_hand(spec):
    """300 queries are 5 blocks of 64, the last with padding; each window has 9 + 64 keys. top sees all pairs."""
    method, inside = member(spec), Shape(64, 73, D, V)
    assert method.pair_multiplications(inside, M) == KERNEL_COSTS[spec]
    if spec in ("clusters", "multipole"):
        whole = Shape(300, 300, D, V)
        inner, pairs = method.multiplications(whole, M), 300 * (9 + 64) * (D + 2 * V)
        assert member(f"window(9):{spec}").multiplications(whole, M) == inner + pairs + 5 * KERNEL_COSTS[spec]
        again = method.pair_multiplications(whole, M)
        assert member(f"top(9):{spec}").multiplications(whole, M) == inner + 300 * 300 * 2 * (D + V) + again


@pytest.mark.parametrize("name", MAP_COSTS)
def test_a_map_states_the_cost_by_hand(name):
    """And centring adds a product of d with every query and key."""
    assert fb.get_map(name).multiplications(N, L, D, V, M) == MAP_COSTS[name]
    alone, inside = (cls(fb.get_map(name), "iid").multiplications for cls in (LinearAttention, FromMap))
    assert alone(Shape(N, L, D, V), M) == inside(Shape(N, L, D, V), M) == MAP_COSTS[name]
    assert inside(Shape(L, L, D, V, True), M) == inside(Shape(L, L, D, V), M) + L * 128 * (D + V)  # chunks of 128
    if name not in ("poisson", "geometric", "hybrid"):
        centred = fb.get_map(f"centre:{name}").multiplications(N, L, D, V, M)
        assert centred - MAP_COSTS[name] == ROWS * D


def test_every_cost_is_stated_by_hand_or_counted_to_the_last_product():
    """The sketches of polynomials are those that test_multiplications counts exactly."""
    assert {cls.name for cls in (*METHODS, *BASELINES)} <= set(METHOD_COSTS)
    assert {cls.name for cls in MAPS} - set(MAP_COSTS) == {"maclaurin", "tensorsketch"}
    assert fb.get_map("calibrated:aderf").multiplications(N, L, D, V, M) == LINEAR + DENSE


# shares of alpha


def test_candidates_share_alpha_equally():
    candidates = [candidate(cost) for cost in (1.0, 2.0, 3.0)] + [candidate(9.0, random=False)]

    def measure(one):
        one.values.append(0.5)
        return True

    assert search(candidates, Rule(0.1, 0.9, 0.06), measure).alpha == pytest.approx(0.02, rel=1e-15)


def test_heads_and_candidates_share_the_confidence(rng):
    """Three heads whose keys are nearly four points, which suits clusters but for rare draws."""
    query, key, value = rng.normal(size=(3, 3, 48, 6))
    key = rng.normal(size=(4, 6))[rng.integers(0, 4, (3, 48))] + 1e-3 * key
    arrays = query, key, value
    found = fb.recommend(arrays, 1e-9, maps="none", methods="sampled-keys,clusters", max_size=32, out="run")
    rows = fb.load("run").trials
    for decision in found.decisions:
        trials = rows[rows["head"] == decision.head]
        random = trials[trials["estimator"].isin(["sampled-keys", "clusters"])]
        tried = len(random.groupby(["estimator", "num_projections"]))
        alpha = 0.05 / 3 / tried
        others = len(trials.groupby(["estimator", "num_projections"], dropna=False)) - tried
        assert tried >= 2 and decision.full == tried * fewest_draws(0.9, alpha) + others
        bounds = {
            name: certified_bound(errors.to_numpy(), 0.9, alpha) if name in set(random["estimator"]) else errors.max()
            for (name, _), errors in trials.groupby(["estimator", "num_projections"], dropna=False)["relative_error"]
            if name in ("clusters", "taylor")
        }
        assert decision.setting.name == min(bounds, key=bounds.__getitem__)
        assert decision.bound == min(bounds.values()) < np.inf
    assert {decision.setting.name for decision in found.decisions} == {"clusters", "taylor"}


# single heads


def test_an_attention_of_many_heads_costs_many_times_as_much():
    layer = ModelLayer(0, "attention", Shape(N, L, D, V), 12, None, None)
    assert layer.multiplications == 12 * N * L * (D + V)


def test_every_item_of_a_batch_counts_with_and_without_padding():
    """Beside an encoder that hides padding, of every item, a decoder without padding counted one item of a batch."""
    shape, clusters = Shape(N, L, D, V), replacement("clusters", 2)
    padded = ModelLayer(0, "encoder", shape, 12, None, None, 2, (shape, shape))
    plain = ModelLayer(1, "decoder", shape, 12, None, None, 2)
    assert padded.multiplications == plain.multiplications == 24 * N * L * (D + V)
    assert padded.work(clusters) == plain.work(clusters) > 0


def test_a_head_of_zeros_is_no_difference():
    zeros = np.zeros((2, 5, 3))
    assert_array_equal(differences(zeros, zeros), [0.0, 0.0])
    assert differences(zeros + 1.0, zeros)[0] == 1.0


def test_errors_after_projection_are_summed_over_heads():
    from favorbench.models.summary import predictions

    base = {"text": "a", "estimator": "e", "sampler": "-", "size": 4, "draw": 0, "kind": "method"}
    heads = {"head_layer": [0, 0, 1], "head_error": [0.1, 0.3, 0.5], "head_after_projection": [3.0, 4.0, 1.0]}
    alone = [base | {"layers": str(i), "effect": 0.1 * i, "head_error": None} for i in range(2)]
    rows = pd.DataFrame([base | heads | {"layers": "all", "effect": 1.0}, *alone])
    found = predictions(SimpleNamespace(rows=rows, measure=SimpleNamespace(positive="effect")))
    assert list(found.points["head_after_projection"]) == [5.0, 1.0]  # sqrt(3^2 + 4^2)
    assert list(found.points["head_error"]) == [0.2, 0.5]


def test_a_scale_that_is_not_the_usual_one_stays():
    """An attention with scaling 0.3 and d = 8 is replaced exactly; and each head has the parameters of it alone."""
    torch = pytest.importorskip("torch")
    from favorbench.models.interface import Call
    from favorbench.models.replacements import Exact
    from favorbench.models.swap import estimates, heads_of

    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn((3, 1, 4, 12, 8), generator=generator, dtype=torch.float64)
    call = Call(None, "attention", 0, query, key, value, None, "full", 0.3, {}, lambda: None)
    expected = torch.softmax(0.3 * query @ key.mT, dim=-1) @ value
    found = estimates(call, lambda heads: Exact().outputs(heads, 0, ()))
    assert float((found - expected).norm() / expected.norm()) < 1e-12
    torch.testing.assert_close(heads_of(call).query, query * 0.3 * 8**0.5)


def test_each_head_of_a_model_is_calibrated_on_itself():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5")
    from favorbench.models.interface import intercept_attention
    from favorbench.models.replacements import EstimatedAttention
    from favorbench.models.study import calibrated
    from favorbench.models.swap import heads_of
    from tests.test_models_swap import bert

    model, tokens, heads = bert(), torch.arange(24)[None], []

    def attend(call):
        heads.append([part[0].numpy() for part in heads_of(call)[:2]])
        return call.own()

    with torch.no_grad(), intercept_attention(model, attend):
        model(tokens)
    what = EstimatedAttention(LinearAttention(fb.get_map("calibrated:centre:oprf")), 8)
    fitted = calibrated(model, what, tokens, {0, 1}).fitted
    probe, omega = np.random.default_rng(0).normal(size=(24, 8)), np.eye(8)
    assert len(fitted) == len(heads) == 2 and len(heads[0][0]) == 4
    for layer, (query, key) in enumerate(heads):
        together = linear_attention(*[np.stack([probe] * 4)] * 3, omega, fitted[layer].wrapped)
        for head in range(4):
            alone = fb.calibrate(query[head], key[head], "calibrated:centre:oprf")
            assert_allclose(together[head], linear_attention(probe, probe, probe, omega, alone), rtol=1e-9)


# the rest


def test_skill_is_relative_to_uniform_attention_wherever_it_stands():
    for baselines in ("taylor-1,uniform", "uniform,taylor-1"):
        summary = fb.sweep(small_scenario(baselines=baselines, trials=1)).trials.set_index("estimator")
        assert (summary["skill"]["uniform"] == 0.0).all() and (summary["skill"]["taylor-1"] != 0.0).all()


def test_the_standard_deviation_of_a_gaussian_is_the_requested_one(rng):
    law = get_input("gaussian(std=0.5)")
    (head,) = law.heads((4000,), (8,))
    drawn = law.draw(rng, head)
    for array, std in ((drawn.query, 0.5), (drawn.key, 0.5), (drawn.value, 1.0)):
        assert np.std(array) == pytest.approx(std, rel=0.03)
