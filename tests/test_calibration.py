"""Calibrated maps: parameters of one text, frozen, and measured on others."""

import re
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import favorbench as fb
from favorbench.engine.plan import plan
from favorbench.engine.study import Study
from favorbench.errors import InputError, ScenarioError, StoreError
from favorbench.maps import OPRF, Calibrated, calibrate
from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.studies.verify import REFUTED, attention, verify
from favorbench.studies.verify.checks import judged
from tests.command_line import run
from tests.conftest import REPOSITORY

EPS = np.finfo(float).eps

FITTED = ["centre:positive", "oprf", "saderf", "sderf", "aderf", "centre:aderf-sderf", "poisson", "geometric"]


def text(rng, length=60, shift=0.5, dim=6, heads=()):
    """Queries, keys and values around means, as trained heads have them."""
    return shift + 0.6 * rng.normal(size=(3, *heads, length, dim))


def heads_file(path, rng, labels=((0, 0), (0, 1)), dim=6, **options):
    """A file of heads, each with means of its own that two texts share."""
    means = np.random.default_rng(1).normal(size=(2, len(labels), 1, dim))
    arrays = text(rng, shift=0.0, dim=dim, heads=(len(labels),), **options)
    arrays[:2] += means
    layer, head = np.array(labels).T
    np.savez(path, q=arrays[0], k=arrays[1], v=arrays[2], layer=layer, head=head)
    return arrays


SWEEP = {"maps": "calibrated:centre:oprf", "samplers": "iid", "num_projections": 8, "trials": 2, "baselines": "uniform"}


def swept(out="run", workers=1, batch=None, **keys):
    return fb.sweep(SWEEP | {"inputs": "test.npz", "calibrate": "other.npz"} | keys, out, workers, batch=batch)


@pytest.mark.parametrize("spec", FITTED)
def test_the_parameters_are_those_of_the_other_text(rng, spec):
    """On that text it is the map that fits itself, bit for bit; on another one it is not: it did not look."""
    query, key, value = text(rng)
    frozen, sample = calibrate(query, key, spec), fb.sample_omega("iid", 12, 6, rng, map=spec)
    same = fb.linear_attention(query, key, value, sample, frozen)
    assert_array_equal(same, fb.linear_attention(query, key, value, sample, spec))
    others = text(rng, shift=-0.8)
    assert not np.allclose(
        fb.linear_attention(*others, sample, frozen), fb.linear_attention(*others, sample, spec), rtol=1e-6
    )


@pytest.mark.parametrize("spec", FITTED)
def test_a_frozen_map_is_causal(rng, spec):
    """No output depends on a later token. The control, the same map that fits itself, is refused as it would."""
    frozen, (query, key, value) = calibrate(*text(rng)[:2], spec), text(rng, length=300)
    sample = fb.sample_omega("iid", 12, 6, rng, map=spec)
    whole = fb.linear_attention(query, key, value, sample, frozen, causal=True)
    part = fb.linear_attention(query[:150], key[:150], value[:150], sample, frozen, causal=True)
    assert_allclose(whole[:150], part, rtol=1e-9 if "poisson" in spec or "geometric" in spec else 1e-12)
    with pytest.raises(InputError, match="uses the whole sequence and cannot be causal"):
        fb.linear_attention(query, key, value, sample, spec, causal=True)


@dataclass(frozen=True)
class Peeking(Calibrated):
    """A wrong calibrated map: it fits its parameters to the measured inputs, part by part."""

    def frozen(self, x):
        return self.wrapped.fit(x, x, None)


@pytest.mark.slow
def test_verify_tests_the_claims_of_frozen_maps():
    """Frozen at tokens that it is not measured on: unbiased, with the variance of those parameters, and causal."""
    found = verify(["calibrated:centre:aderf-sderf/iid", "sinks(4):calibrated:centre:positive"], draws=2000)
    assert not found.refuted
    held = {(check.subject, check.claim) for check in found.checks if check.verdict == "holds"}
    name = "calibrated:centre:aderf-sderf"
    assert {(f"{name}/iid", claim) for claim in ("target", "unbiased", "variance", "nonnegative")} <= held
    assert {(name, "causal equals masked"), (name, "stabilisers cancel")} <= held
    assert ("sinks(4):calibrated:centre:positive", "future keys have no effect") in held


def test_verify_refutes_a_map_that_looked():
    found = judged(attention.measure([Peeking(fb.get_map("centre:positive"))], fb.get_sampler("orthogonal"), 0))
    assert ("causal equals masked", REFUTED) in {(check.claim, check.verdict) for check in found}


def test_a_method_around_a_calibrated_map(rng):
    query, key, value = text(rng, length=200)
    spec = "sinks(4):calibrated:centre:aderf-sderf"
    with pytest.raises(InputError, match=re.escape("'calibrated:centre:aderf-sderf' is not calibrated")):
        fb.method_attention(query, key, value, spec, causal=True)
    frozen = calibrate(*text(rng)[:2], map=fb.get_method(spec))
    assert label(frozen) == spec
    output = fb.method_attention(query, key, value, frozen, size=16, causal=True)
    first = fb.method_attention(query[:140], key[:140], value[:140], frozen, size=16, causal=True)
    assert_allclose(output[:140], first, rtol=1e-12)


def test_parameters_follow_the_type_of_the_input(rng):
    """Each head has its own parameters, in the precision of the input and for one dimension only."""
    query, key, value = text(rng, heads=(3,))
    omega, frozen = rng.normal(size=(10, 6)), calibrate(*text(rng, heads=(3,))[:2], map="centre:aderf-sderf")
    together = fb.linear_attention(query, key, value, omega, frozen)
    assert together.shape == value.shape
    single = fb.linear_attention(*(a.astype(np.float32) for a in (query, key, value)), omega, frozen)
    assert single.dtype == np.float32
    assert_allclose(single, together, rtol=0, atol=1e4 * np.finfo(np.float32).eps)
    with pytest.raises(InputError, match="was calibrated for head_dim 6, and is asked for 5"):
        fb.linear_attention(*text(rng, dim=5), rng.normal(size=(4, 5)), frozen)


def test_maps_that_can_be_calibrated(rng):
    query, key, _ = text(rng)
    for nothing in ("positive", "oprf(rho=0.5)", calibrate(query, key, "oprf"), fb.get_method("sinks(4):oprf")):
        with pytest.raises(InputError, match="nothing to calibrate"):
            calibrate(query, key, nothing)
    with pytest.raises(InputError, match=re.escape("query (60, 6), key (60, 5)")):
        calibrate(query, key[:, :5], "oprf")
    with pytest.raises(ScenarioError, match="depends on omega, which is drawn anew"):
        fb.get_map("calibrated:positive-eps")
    for spec in ("centre:calibrated:oprf", "calibrated:calibrated:oprf"):
        with pytest.raises(ScenarioError, match="calibrated: stands before all other transforms of a map"):
            fb.get_map(spec)
    with pytest.raises(InputError, match="use calibrate"):
        fb.linear_attention(*text(rng), rng.normal(size=(4, 6)), "calibrated:oprf")
    plain = [fb.linear_attention(*text(np.random.default_rng(0)), np.eye(6), m) for m in ("trig", "calibrated:trig")]
    assert_array_equal(plain[0], plain[1])  # what takes nothing is what it was


def test_a_sweep_measures_on_another_text_than_it_fits(rng):
    """Every draw's error is that of the map frozen at the other file's head of the same name, at the same scale."""
    query, key, value = heads_file("test.npz", rng)
    others = heads_file("other.npz", rng, labels=((0, 1), (0, 0)), length=90)  # in another order, longer
    results = swept(scale=0.7, causal=True)
    study = Study.of(fb.load_scenario(None, SWEEP | {
        "inputs": "test.npz", "calibrate": "other.npz", "scale": 0.7, "causal": True}))  # fmt: skip
    rows = results.trials.query("estimator == 'calibrated:centre:oprf'").set_index("draw")["mse"]
    for draw in plan(study):
        i = [h.label for h in study.inputs["test.npz"].law.heads(None, None)].index(draw.head.label)
        omega = fb.get_sampler("iid").sample(stream(0, "omega", "iid", *draw.stream_names), 8, 6)
        frozen = calibrate(0.7 * others[0, 1 - i], 0.7 * others[1, 1 - i], "centre:oprf")
        exact = fb.exact_attention(0.7 * query[i], 0.7 * key[i], value[i], causal=True)
        output = fb.linear_attention(0.7 * query[i], 0.7 * key[i], value[i], omega, frozen, causal=True)
        assert_allclose(rows[draw.index], np.mean((output - exact) ** 2), rtol=1e4 * EPS)
        looked = calibrate(0.7 * query[i], 0.7 * key[i], "centre:oprf")  # the control: other numbers
        output = fb.linear_attention(0.7 * query[i], 0.7 * key[i], value[i], omega, looked, causal=True)
        assert abs(np.mean((output - exact) ** 2) / rows[draw.index] - 1) > 1e-3


def test_workers_and_methods_calibrate_alike(rng):
    heads_file("test.npz", rng), heads_file("other.npz", rng)
    asked = {"methods": "sinks(2):calibrated:centre:oprf", "maps": "calibrated:centre:oprf,positive"}
    one, two = swept("one", **asked), swept("two", workers=2, **asked)
    assert one.trials.equals(two.trials)
    assert {"sinks(2):calibrated:centre:oprf", "calibrated:centre:oprf"} <= set(one.trials["estimator"])


def test_torch_calibrates_a_batch_as_numpy_does(rng):
    pytest.importorskip("torch")
    heads_file("test.npz", rng), heads_file("other.npz", rng)
    asked = {"methods": "sinks(2):calibrated:centre:oprf", "maps": "calibrated:centre:aderf-sderf"}
    numpy = swept("numpy", **asked).trials
    torch = swept("torch", batch=4, backend="torch", **asked).trials
    assert_allclose(torch["mse"], numpy["mse"], rtol=1e-8)


def test_the_file_of_the_calibration_is_described(rng):
    """With other axes it passes for many heads of few tokens, and the first may have the labels measured."""
    q, k, v = text(rng, heads=(2,))
    np.savez("test.npz", q=q, k=k, v=v)
    np.savez("other.npz", **{name: a.swapaxes(0, 1) + 1.0 for name, a in zip("qkv", (q, k, v), strict=True)})
    _, _, said = run("sweep --inputs test.npz --maps calibrated:oprf --calibrate other.npz -R 4 --trials 1 --dry-run")
    assert "frozen: other.npz; 60 heads of 2 tokens each: if it is the other way round, use --layout L,heads,d" in said


def test_a_run_belongs_to_its_calibration(rng):
    heads_file("test.npz", rng), heads_file("other.npz", rng)
    first = swept()
    assert swept().trials.equals(first.trials)
    heads_file("third.npz", rng)
    with pytest.raises(StoreError, match=r'calibrate "other.npz" there, "third.npz" here'):
        swept(calibrate="third.npz")
    heads_file("other.npz", rng)  # another text in a file of the same name
    with pytest.raises(StoreError, match="its input file"):
        swept()


def test_the_text_that_is_measured_is_refused(rng):
    query, key, value = heads_file("test.npz", rng)
    names = {"layer": np.zeros(2, int), "head": np.arange(2)}
    said = "head L0H0 of it is the text that is measured, test.npz: a map that has seen the test"
    np.savez("copy.npz", q=query, k=key, v=2 * value, **names)
    np.savez(
        "short.npz", q=query[:, :20].astype(np.float16), k=key[:, :20].astype(np.float16), v=value[:, :20], **names
    )
    for same in ("test.npz", "copy.npz", "short.npz"):
        with pytest.raises(ScenarioError, match=re.escape(said)):
            swept(calibrate=same)
    np.savez("zero.npz", q=0 * query, k=key, v=value, **names)
    with pytest.raises(ScenarioError, match=r"it is the text that is measured, zero\.npz"):
        swept(inputs="zero.npz", calibrate="zero.npz")
    np.savez("near.npz", q=query, k=key[:, ::-1], v=value, **names)  # the same tokens in another order are another text
    swept(calibrate="near.npz")


@pytest.mark.parametrize(
    "keys, said",
    [
        (
            {"calibrate": None},
            "calibrated:centre:oprf: its parameters are those of another text: give `calibrate` FILE to favorbench",
        ),
        (
            {"maps": "centre:oprf"},
            "`calibrate` other.npz: nothing asked for has parameters to fit; write calibrated:MAP",
        ),
        (
            {"maps": "calibrated:positive"},
            "other.npz: nothing asked for has parameters to fit; write calibrated:MAP for",
        ),
        ({"calibrate": "few.npz"}, "it has no head 'L0H1', which is to be measured; it has L0H0"),
        ({"calibrate": "wide.npz"}, "its head L0H0 has head_dim 7, not 6"),
        ({"calibrate": "gausian"}, "unknown inputs 'gausian' (did you mean 'gaussian'?)"),
        ({"calibrate": "absent.npz"}, "cannot read inputs 'absent.npz': No such file"),
    ],
)
def test_maps_that_cannot_be_calibrated_are_refused(rng, keys, said):
    heads_file("test.npz", rng), heads_file("other.npz", rng)
    heads_file("few.npz", rng, labels=((0, 0),)), heads_file("wide.npz", rng, dim=7)
    with pytest.raises((ScenarioError, InputError), match=re.escape(said)):
        swept(**keys)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda a: np.where(a > 1, np.nan, a), "query or key has values that are NaN or infinite"),
        (lambda a: a[:0], r"query \(0, 4\), key \(9, 4\): allowed: \(..., n, d\)"),
        (lambda a: [0.5] * 4, r"query \(4,\), key \(9, 4\): allowed"),
    ],
)
def test_arrays_that_cannot_be_calibrated_on_are_refused(rng, change, said):
    for wrong in (rng.normal(size=(9, 4)), OPRF):  # arguments in another order; a class
        with pytest.raises(ScenarioError, match=r"^map: .* given; allowed: a name, or an object of favorbench.Feature"):
            fb.calibrate("oprf", np.ones((9, 4)), wrong)
    query, key = rng.normal(size=(2, 9, 4))
    with pytest.raises(InputError, match=said):
        calibrate(change(query), key)


def test_random_inputs_are_calibrated_on_a_draw_of_their_own():
    asked = {"inputs": "gaussian", "calibrate": "gaussian", "seq_len": 64, "head_dim": 4}
    frozen = swept("frozen", **asked).trials
    looked = swept("looked", **asked | {"maps": "centre:oprf", "calibrate": None}).trials
    of = [rows.query("kind == 'map'")["mse"].to_numpy() for rows in (frozen, looked)]
    assert np.all(of[0] != of[1]) and np.all(of[0] < 10 * of[1])


def test_frozen_parameters_spare_the_pass_over_the_data():
    """The product of tokens with a d x d matrix that moments take, and no other."""
    for spec in ("sderf", "aderf", "aderf-sderf", "centre:aderf-sderf"):
        whole, frozen = (fb.get_map(name).map_multiplications(9, 7, 5, 3) for name in (spec, f"calibrated:{spec}"))
        assert whole - frozen == (9 + 7) * 5 * 5
    assert fb.get_map("calibrated:saderf").map_multiplications(9, 7, 5, 3) == fb.get_map("saderf").map_multiplications(
        9, 7, 5, 3
    )


def test_shipped_heads_are_calibrated_on_another_file(rng):
    """A file with the shipped heads' names serves them."""
    with np.load(REPOSITORY / "scenarios" / "data" / "minilm-cc0.npz") as shipped:
        arrays = {name: shipped[name] for name in ("q", "k", "v", "layer", "head")}
    np.savez("other.npz", **arrays | {"q": arrays["q"][:, ::-1], "k": arrays["k"][:, ::-1]})
    results = swept(inputs="minilm", trials=1, seq_len=32)
    assert set(results.trials["head"]) == {"L0H1", "L0H5", "L5H0", "L5H8"}


def test_parameters_are_frozen_for_gradients_too():
    """As of queries from a model run with gradients: the map held their graph, and a second backward pass failed."""
    torch = pytest.importorskip("torch")
    query, key, value, rows = (torch.randn(12, 4, dtype=torch.float64, requires_grad=True) for _ in range(4))
    frozen = calibrate(query, key, "centre:aderf-sderf")
    fb.linear_attention(query.detach(), key.detach(), value, rows.detach(), frozen).sum().backward()
    assert frozen.wrapped.means.query.requires_grad is False
    loss = fb.linear_attention(query, key, value, rows, frozen).square().sum()  # of projections that are trained
    assert all(bool(part.any()) for part in torch.autograd.grad(loss, (query, key, value, rows)))
