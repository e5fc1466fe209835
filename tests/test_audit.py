"""audit: what it says of implementations whose faults are known."""

import importlib.util
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
from numpy.testing import assert_allclose
from rich.console import Console

from favorbench.console import show
from favorbench.console.studies import audit_sections
from favorbench.errors import EstimatorError, ScenarioError
from favorbench.results.compare import comparison
from favorbench.results.results import load
from favorbench.studies.audit import audit, study_of
from tests.command_line import check_refused, refused, run
from tests.conftest import parts

IMPLEMENTATIONS = """
import numpy as np

def exact(q, k, v):
    a = np.exp(q @ k.T / np.sqrt(q.shape[-1]))
    return a @ v / a.sum(-1, keepdims=True)

def mean(q, k, v):
    return np.tile(v.mean(0), (len(q), 1))

def favor(q, k, v, omega):
    phi = lambda x: np.exp(x @ omega.T - (x * x).sum(-1, keepdims=True) / 2)
    x, y = q * q.shape[-1] ** -0.25, k * q.shape[-1] ** -0.25
    return phi(x) @ (phi(y).T @ v) / (phi(x) @ phi(y).sum(0))[:, None]

def broken(q, k, v):
    raise KeyError("weights")

def wrong_shape(q, k, v):
    return v[:3]

def not_a_number(q, k, v):
    return np.full(v.shape, np.nan)

def sometimes(q, k, v, omega):
    return favor(q, k, v, omega) * (np.nan if omega[0, 0] > 1.0 else 1.0)

def huge(q, k, v):
    return 1e200 * exact(q, k, v)

def options(q, k, v, mask=None, causal=False):
    return exact(q, k, v) if mask is None and causal is False else v

def keywords(q, k, v, *, mask=None, causal=False):
    return options(q, k, v, mask, causal)

def others(q, k, v, *arguments, **options):
    return v if arguments else exact(q, k, v)

def with_eps(q, k, v, omega, eps=0.0):
    return favor(q, k, v, omega) + eps

def sized(query, key, value, size=None, rng=None):
    return value if size is None else exact(query, key, value)
"""


@pytest.fixture(autouse=True)
def _implementations(module):
    module("implementations", IMPLEMENTATIONS)


def medians(name):
    found = {}
    for finding in audit([f"implementations:{name}"], runs=6):
        assert finding.low <= finding.median <= finding.high or np.isnan(finding.median)
        found.setdefault(finding.measure, []).append(finding.median)
    return found


def test_exact_attention_is_found_exact():
    found = medians("exact")
    assert max(found["error against exact"]) < 1e-13
    assert_allclose(found["distance to uniform"], 1.0, rtol=1e-12)


@pytest.mark.parametrize("name", ["options", "keywords", "others", "sized"])
def test_parameters_with_defaults_are_left_alone(name):
    """Only size and rng are given, and what must be given."""
    assert max(medians(name)["error against exact"]) < 1e-13


def test_omega_may_come_with_options():
    assert max(medians("with_eps")["distance to FAVOR+ on the same omega"]) < 1e-9


@pytest.mark.parametrize("shares", [(0, 1, 1), (1, 1, 0)], ids=["q = 0", "v = 0"])
def test_where_exact_attention_is_the_mean_of_v_this_is_no_fault(shares, rng):
    arrays = (share * array for share, array in zip(shares, rng.normal(size=(3, 8, 4)), strict=True))
    np.savez("alike.npz", **dict(zip("qkv", arrays, strict=True)))
    names = ["implementations:exact", "implementations:mean", "implementations:not_a_number"]
    findings = audit(names, runs=6, study=study_of(names, 6, 0, "alike.npz"))
    assert [f.measure for f in findings] == ["error against exact"] * 3
    assert [f.fault for f in findings] == [False, False, True] and findings[0].median < 1e-13


def test_the_mean_of_v_is_found_out():
    findings = audit(["implementations:mean"], runs=6)
    uniform = [f for f in findings if f.measure == "distance to uniform"]
    assert len(uniform) == 4
    assert all(f.median < 1e-12 and f.remark == "its output is within 0.0% of the mean of V" for f in uniform)


def test_a_right_estimator_is_favor_on_the_same_omega():
    found = medians("favor")
    assert max(found["distance to FAVOR+ on the same omega"]) < 1e-9
    assert min(found["error against exact"]) > 0.01


def test_failures_are_reported_in_one_line():
    with pytest.raises(EstimatorError, match=re.escape("implementations:broken failed: KeyError: 'weights'")):
        audit(["implementations:broken"], runs=6)
    wrong = "returned float64 of shape (3, 64); (L, d_v) = (256, 64) was expected"
    with pytest.raises(EstimatorError, match=re.escape(wrong)):
        audit(["implementations:wrong_shape"], runs=6)
    with pytest.raises(ScenarioError, match="allowed: performer-pytorch, a method, or module:function"):
        audit(["performer"])
    (first, *_) = audit(["implementations:not_a_number"], runs=6)
    assert first.remark == "it fails here: the output is not finite" and first.fault
    (first, *_) = audit(["implementations:huge"], runs=6)
    assert first.remark == "it fails here: its error is not finite" and first.fault


def test_an_output_that_is_not_finite_in_some_runs_leaves_the_median_of_all():
    """Of one NaN the median was NaN, and "the output is not finite" was said of all runs."""
    error, *_ = audit(["implementations:sometimes"], runs=20)
    (draws,) = {int(n) for n in re.findall(r"the output is not finite in (\d+) of 20 runs", error.remark)}
    assert 0 < draws < 8 and error.fault
    assert error.low <= error.median < 1.5 and np.isfinite(error.median)


def test_faults_are_marked():
    """The flag says it, not the words of the remark; what is right, or only stated, has none."""
    findings = audit(["implementations:mean", "implementations:favor", "implementations:not_a_number"], runs=6)
    faults = {(f.subject.partition(":")[2], f.measure) for f in findings if f.fault}
    assert faults == {("mean", "distance to uniform"), ("not_a_number", "error against exact")}
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=100)
    show(console, audit_sections(findings, 6))
    lines = console.file.getvalue().splitlines()
    marked = [line for line in lines if "\x1b[1;31m" in line]
    assert len(marked) == sum(f.fault for f in findings) == 8
    assert "R = 256, methods: m = 64" in " ".join(lines)


def test_progress_names_the_implementation_and_one_core_is_used():
    calls = []

    def progress(done, total, step):
        calls.append((done, total, step, {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}))

    before = threadpoolctl.threadpool_info()
    audit(["implementations:mean", "implementations:exact"], runs=6, progress=progress)
    names = ["implementations:mean"] * 4 + ["implementations:exact"] * 4
    assert calls == [(i, 8, name, {1}) for i, name in enumerate(names)]
    assert threadpoolctl.threadpool_info() == before  # the caller's threads are the caller's


@pytest.mark.skipif(importlib.util.find_spec("performer_pytorch") is None, reason="needs favorbench[audit]")
def test_performer_pytorch():
    """Its eps makes the output uniform on real heads; without eps it is FAVOR+; its sampler is QR without the sign."""
    findings = {(f.input, f.measure): f for f in audit(["performer-pytorch"], runs=8)}
    head = "minilm L5H0, L = 512, d = 32"
    assert "of the mean of V" in findings[head, "distance to uniform"].remark
    assert findings[head, "effect of eps"].median > 0.3
    quiet = "gaussian, scale 0.5, L = 256, d = 64"
    assert findings[quiet, "effect of eps"].median == pytest.approx(
        findings[quiet, "distance to FAVOR+ on the same omega"].median, rel=0.01
    )
    assert findings["its sampler", "rows have mean 0"].remark.startswith("REFUTED: d = 8: E w_11 = -0.8")
    assert findings["its sampler", "orthogonal inside blocks"].remark.startswith("holds")


def test_methods_and_functions_like_them_are_audited():
    Path("audited_method.py").write_text(
        "def first(query, key, value, size, rng):\n    return value * 0 + value[:size].mean(0)\n"
    )
    findings = audit(["clusters", "sinks(4):multipole", "audited_method:first"], runs=6)
    errors = {(f.subject, f.input): f.median for f in findings if f.measure == "error against exact"}
    heads = [name for _, name in errors if "L5H0" in name][:1]
    assert errors["clusters", heads[0]] < 0.5 < errors["audited_method:first", heads[0]]
    assert errors["sinks(4):multipole", heads[0]] < errors["clusters", heads[0]]
    again = audit(["clusters"], runs=6)
    assert [f.median for f in again] == [f.median for f in findings if f.subject == "clusters"]


def test_an_audit_is_saved_as_a_run_that_tables_rankings_figures_and_compare_read():
    """Its rows are the implementation's own errors: those of the same function as a method, and of exact attention."""
    names = ["implementations:mean", "implementations:favor", "implementations:exact"]
    arguments = [*names, "--inputs", "minilm", "-R", "16,64", "--runs", "8", "--out", "audited"]
    code, out, err = run("audit", *arguments)
    assert code == 0 and "implementations:favor: minilm L5H8, L = 512, d = 32" in out and "R = 64" in out
    assert "saved in audited" in err
    results = load("audited")
    assert results.manifest["complete"] and results.scenario.name == "audit" and results.scenario.trials == 8
    trials = results.trials.set_index("estimator")
    assert set(trials.index) == {*names, "uniform", "taylor-1", "sampled-keys", "best-rank", "positive"}
    assert trials.loc["implementations:exact", "relative_error"].max() < 1e-13
    assert_allclose(trials.loc["implementations:mean", "mse"], trials.loc["uniform", "mse"], rtol=1e-9)
    assert trials.loc["implementations:mean", "num_projections"].isna().all()  # it takes none
    assert set(trials.loc["implementations:favor", "num_projections"]) == {16, 64}
    # FAVOR+ from other projections of the same law: no detectable difference, and worse than itself at four times R
    found = comparison(results, estimators="implementations:favor,positive orthogonal")
    assert {row.mark for row in found.rows} == {"~"}
    assert "implementations:favor" in run("table audited --over heads")[1]
    assert "implementations:mean" in run("table", "audited", "--rank")[1]
    assert run("plot", "audited")[0] == 0
    drawn = "".join(path.read_text() for path in Path("audited/figures").glob("*.csv"))
    assert "implementations:favor" in drawn and "implementations:mean" in drawn
    before = parts("audited")
    assert run("audit", *arguments)[:2] == (code, out)  # resumed: nothing is computed again
    assert parts("audited") == before
    assert "holds another run" in refused("audit", "implementations:mean", *arguments[3:])


def test_heads_of_a_causal_model_are_audited_without_its_mask(rng):
    """Implementations take none: the run and the findings are of full attention."""
    np.savez("decoder.npz", **dict(zip("qkv", rng.standard_normal((3, 64, 8)), strict=True)), causal=True)
    arguments = ["implementations:exact", "clusters", "--inputs", "decoder.npz", "-R", "16", "--runs", "6"]
    code, out, _ = run("audit", *arguments, "--out", "audited", "--json")
    assert code == 0 and not load("audited").scenario.causal
    assert json.loads(out)["findings"][0]["median"] < 1e-13
    assert load("audited").trials.set_index("estimator").loc["implementations:exact", "relative_error"].max() < 1e-13


def test_projections_may_be_more_than_the_keys(rng):
    """By default there are 256, also on short texts; a method keeps to the number of keys."""
    np.savez("short.npz", **dict(zip("qkv", rng.standard_normal((3, 64, 8)), strict=True)))
    code, out, _ = run("audit", "implementations:favor", "--inputs", "short.npz", "--runs", "6", "--out", "audited")
    assert code == 0 and "R = 256" in out
    rows = load("audited").trials.set_index("estimator").loc["implementations:favor"]
    assert set(rows["num_projections"]) == {64, 256}
    assert "at most 64, the number of keys" in refused("audit", "clusters", "--inputs", "short.npz", "--out", "other")


def test_heads_that_stand_after_the_length_are_audited_with_a_layout(rng):
    """Without it they are taken for many heads of few tokens, which is said."""
    q, k, v = rng.standard_normal((3, 2, 16, 4))
    np.savez("one.npz", q=q, k=k, v=v)
    np.savez("two.npz", **{name: array.swapaxes(0, 1) for name, array in zip("qkv", (q, k, v), strict=True)})
    arguments = ["implementations:exact", "-R", "4", "--runs", "6", "--inputs"]
    _, _, said = run("audit", *arguments, "two.npz", "--out", "wrong")
    assert "two.npz: 16 heads of 2 tokens each: if it is the other way round, use --layout L,heads,d" in said
    _, first, _ = run("audit", *arguments, "one.npz", "--out", "first")
    _, second, _ = run("audit", *arguments, "two.npz", "--layout", "L,heads,d", "--out", "second")
    assert "one.npz h1, L = 16, d = 4" in first and second.replace("two.npz", "one.npz") == first


def test_subjects_that_cannot_be_audited_are_refused_before_measuring():
    check_refused("""
        audit clustres => did you mean 'clusters'
        audit implementations:mean --inputs minlm => unknown inputs 'minlm'
        audit implementations:mean -R 0 => -R: 0 given
        audit implementations:mean --out . => not a favorbench run
    """)


def test_a_function_without_a_signature_is_audited_as_one_of_q_k_v():
    with pytest.raises(EstimatorError, match="builtins:max failed: ValueError: The truth value"):
        audit(["builtins:max"], runs=6)


def test_methods_of_one_name_are_refused(module):
    """The saved run had the rows of one of them alone."""
    source = "def near(query, key, value, size, rng):\n    return query"
    module("first", source), module("second", source)
    with pytest.raises(ScenarioError, match="'second:near' and 'first:near' are both called 'near'"):
        study_of(["first:near", "second:near"], runs=6, seed=0, inputs="gaussian")


def test_a_class_of_a_module_takes_parameters():
    name = "favorbench.methods.clusters:Clusters(lloyd=2)"
    assert study_of([name], runs=6, seed=0, inputs="gaussian").scenario.methods == (name,)
    with pytest.raises(ScenarioError, match="'mean' is already built and takes no parameters"):
        study_of(["implementations:mean(x=2)"], runs=6, seed=0, inputs="gaussian")
