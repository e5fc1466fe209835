"""Classes as people bring them: a failure names the class in every command, and what it cannot give is said."""

import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from favorbench.attention.linear import kernel_estimate, linear_attention, sample_omega
from favorbench.errors import EstimatorError
from favorbench.maps.random_features import Positive, Trig
from favorbench.methods import Estimate, Method
from favorbench.numerics.arrays import Features, half_squared_norm
from favorbench.samplers.iid import IID
from favorbench.studies.audit import audit
from favorbench.studies.verify import HOLDS, verify
from favorbench.studies.verify.checks import REFUTED, judged
from favorbench.studies.verify.methods import of_method
from tests.command_line import printed, refused, run

CLASSES = """
from dataclasses import dataclass

from favorbench import Estimate, FeatureMap, Method, Sampler


@dataclass(frozen=True)
class Failing(FeatureMap):
    name = "failing"
    reference = "unpublished"
    features_per_projection = 1
    nonnegative = unbiased = True

    def features(self, x, projection, sample):
        return 1 / 0

    def target_kernel(self, x, y, rows):
        return 1 / 0


@dataclass(frozen=True)
class FailingRows(Sampler):
    name = "failing-rows"
    reference = "unpublished"
    gaussian_rows = True
    coupling = "independent"

    def sample(self, rng, num_projections, head_dim):
        return 1 / 0


@dataclass(frozen=True)
class Keys(Method):
    name = "keys"
    reference = "unpublished"
    description = "m random keys, and a claim that is false"
    arrays = "host"
    unbiased = convex = True

    def estimates(self, problem, sizes, streams):
        (rng,) = streams.generators
        order = rng.permutation(len(problem.key))
        for size in sizes:
            part = problem._replace(key=problem.key[order[:size]], value=problem.value[order[:size]])
            yield Estimate(size, size, problem.query[:, :1] * 0 + part.value.mean(0), None)

    def multiplications(self, shape, size):
        return 1.0


@dataclass(frozen=True)
class Nothing(Keys):
    name = "nothing-at-all"

    def estimates(self, problem, sizes, streams):
        return iter(())


@dataclass(frozen=True)
class Unpriced(Keys):
    name = "unpriced"

    def multiplications(self, shape, size):
        return 1 / 0
"""
ROWS = """
@dataclass(frozen=True)
class Rows(Sampler):
    name = "rows"
    reference = "unpublished"
    gaussian_rows = True
    coupling = "independent"

    def sample(self, rng, num_projections, head_dim):
"""
MODEL = """
import torch


class Attention(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def model():
    return Attention(), [torch.ones(1, 2, 16, 4), torch.zeros(1, 2, 16, 4)]
"""
SMALL = "gaussian -L 16 -d 2 --target 0.5 --maps none --methods"


@pytest.fixture
def classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("classes.py").write_text(CLASSES)


@pytest.mark.parametrize(
    ("command", "who"),
    [
        ("verify classes:Failing/iid", "classes:Failing/iid: kernels under iid"),
        ("verify positive/classes:FailingRows", "positive/classes:FailingRows: law of failing-rows"),
        ("theory positive classes:FailingRows", "positive under failing-rows"),
        ("kernel gaussian -d 4 --maps positive --samplers classes:FailingRows", "failing-rows"),
        ("verify classes:Unpriced", "unpriced: its multiplications"),
        (f"recommend {SMALL} classes:Unpriced", "unpriced: its multiplications"),
    ],
)
def test_a_failure_names_the_class(classes, command, who):
    assert f"{who} failed: ZeroDivisionError: division by zero" in refused(command)


def test_rows_that_are_not_gaussian_need_no_law(tmp_path, monkeypatch):
    """An "unexpected NotImplementedError" of kernel and theory."""
    monkeypatch.chdir(tmp_path)
    rows = ROWS.replace("gaussian_rows = True", "gaussian_rows = False")
    rows += "        return rng.choice([-1.0, 1.0], (num_projections, head_dim))\n"
    Path("signs.py").write_text(CLASSES.partition("@dataclass")[0] + rows)
    small = "--samplers signs:Rows -R 4 -d 2 --num-points 4 --trials 2 --json"
    kernel = json.loads(printed(f"kernel gaussian --maps trig {small} -q"))
    assert kernel["cells"][0]["expected"] is None
    assert "no closed form for positive under rows" in refused("theory positive signs:Rows")
    checks = verify(["trig/signs:Rows"], 500).checks
    assert {check.verdict for check in checks if check.claim == "target"} == {"no claim"}


BARE = """
@dataclass(frozen=True)
class Rows(Sampler):
    name = "rows"
    coupling = "independent"

    def sample(self, rng, num_projections, head_dim):
        return rng.normal(size=(num_projections, head_dim))


@dataclass(frozen=True)
class Map(FeatureMap):
    name = "map"

    def features(self, x, projection, sample):
        return (Features(None, projection - half_squared_norm(x)),)

    def target_kernel(self, x, y, rows):
        return exponential_target(x, y, rows)
"""


def test_a_class_that_declares_nothing_has_no_claims(tmp_path, monkeypatch):
    """An "unexpected AttributeError" of kernel, theory and, without the number of features, sweep."""
    monkeypatch.chdir(tmp_path)
    imports = "from favorbench import Features, exponential_target, half_squared_norm\n"
    Path("bare.py").write_text(imports + CLASSES.partition("@dataclass")[0] + BARE)
    printed("kernel softmax --maps bare:Map --samplers bare:Rows -R 4 -d 2 --num-points 4 --trials 2 -q")
    assert "no closed form for map under rows" in refused("theory bare:Map bare:Rows")
    checks = verify(["bare:Map/iid"], 500).checks
    assert {check.verdict for check in checks if check.claim in ("unbiased", "nonnegative", "variance")} <= {"no claim"}


@pytest.mark.parametrize("value", ["'uniform'", "(1, 2)"])
def test_a_field_called_sampler_may_be_anything(module, value):
    """Only that of our own prefixes names a sampler of projections; it ended a sweep as an unknown sampler."""
    module("theirs", CLASSES.replace("class Keys(Method):\n", f"class Keys(Method):\n    sampler: object = {value}\n"))
    printed("sweep --maps none --methods theirs:Keys -R 4 -L 16 -d 2 --trials 2 --out mine -q")


def test_a_failure_in_a_model_names_the_class(classes):
    pytest.importorskip("torch")
    Path("attends.py").write_text(MODEL)
    for flags, who in (
        ("--maps classes:Failing --methods none", "failing"),
        ("--maps none --methods classes:Unpriced", "unpriced: its multiplications"),
    ):
        assert f"favorbench: {who} failed: ZeroDivisionError" in refused(f"model attends:model -R 4 {flags}")


@pytest.mark.parametrize(
    ("returned", "declared", "said"),
    [
        ("(Features(np.concatenate([cos, sin], -1), scale),)", 2, "a block of 8 columns for 4 projections"),
        ("(Features(cos, scale), Features(sin, scale))", 1, "8 columns for 4 projections, and it declares 4"),
        ("(Features(cos[:, 1:], scale), Features(sin, scale))", 2, "a block of 3 columns for 4 projections"),
        ("Features(cos, scale)", 1, "must be a tuple of Features"),
        ("cos", 1, "must be a tuple of Features"),
        ("(Features(cos + 1j * sin, scale),)", 1, "are complex numbers; allowed: real ones, such as cosines and sines"),
    ],
)
def test_features_are_refused_unless_every_projection_has_one_column_in_each_block(returned, declared, said):
    """Of cos and sin in one block attention used the cosines alone, and two blocks cost as much as one.

    Complex features lost their imaginary parts in the sums over keys: outputs were wrong behind a line of NumPy's.
    """
    namespace = {"np": np, "Features": Features, "returned": returned}
    q, k, v = np.random.default_rng(0).normal(size=(3, 6, 2))
    omega = np.random.default_rng(1).normal(size=(4, 2))

    class Waves(Trig):
        features_per_projection = declared

        def features(self, x, projection, sample):
            scale = half_squared_norm(x)
            return eval(returned, namespace, {"cos": np.cos(projection), "sin": np.sin(projection), "scale": scale})

    for call in (linear_attention, partial(linear_attention, causal=True)):
        with pytest.raises(EstimatorError, match=said):
            call(q, k, v, omega, map=Waves())
    with pytest.raises(EstimatorError, match=said):
        kernel_estimate(q, k, omega, map=Waves())


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("omega[1:]", r"float64 of shape (3, 2)"),
        ("omega.T", r"float64 of shape (2, 4)"),
        ("omega + 1j", r"complex128 of shape (4, 2)"),
        ("omega.tolist()", "list"),
        ("None", "NoneType"),
    ],
)
def test_projections_are_refused_unless_there_are_as_many_as_asked_for(returned, said, classes):
    """Three projections were measured as four, and the imaginary parts of complex ones were left out."""
    rows = f"        omega = rng.normal(size=(num_projections, head_dim))\n        return {returned}"
    Path(f"rows_{len(returned)}.py").write_text(CLASSES.partition("@dataclass")[0] + ROWS + rows)
    sampler = f"rows_{len(returned)}:Rows"
    with pytest.raises(EstimatorError, match=re.escape(f"{said}; it must return a NumPy array (4, 2)")):
        sample_omega(sampler, 4, 2, np.random.default_rng(0))
    for command in (
        f"sweep -L 8 -d 2 -R 4 --trials 2 --maps positive --samplers {sampler}",
        f"kernel gaussian -d 2 -R 4 --maps positive --samplers {sampler}",
    ):
        assert f"sampler rows returned {said}; it must return a NumPy array (4, 2)" in refused(command)


def test_recommend_goes_on_without_a_method_that_has_no_estimate(classes):
    """It asked for the same draw for ever."""
    code, out, _ = run(f"recommend {SMALL} classes:Nothing -q")
    assert code == 0 and "nothing-at-all" not in out


def test_a_claim_that_cannot_be_tested_is_listed():
    """Of the sums behind a quotient only those of key summaries are known: the others claim what verify cannot see."""
    for name in ("hyperattention", "lara"):
        (check,) = (check for check in verify([name], draws=500).checks if check.claim == "unbiased sums")
        assert (check.verdict == HOLDS) == (name == "lara")
        assert name == "lara" or check.verdict == "not measurable by sampling"


def test_a_class_of_a_method_is_audited(classes):
    assert {finding.subject for finding in audit(["classes:Keys"], runs=6)} == {"classes:Keys"}


@dataclass(frozen=True)
class WrittenMap(Positive):
    """It writes the features of each call into the same array."""

    name = "written"

    def features(self, x, projection, sample):
        (block,) = super().features(x, projection, sample)
        kept = KEPT.setdefault(block.log_scale.shape, block.log_scale)
        kept[:] = block.log_scale
        return (block._replace(log_scale=kept),)


@dataclass(frozen=True)
class WrittenRows(IID):
    """It writes each draw into the same array."""

    name = "written"

    def sample(self, rng, num_projections, head_dim):
        return rng.standard_normal(out=KEPT.setdefault(num_projections, np.empty((num_projections, head_dim))))


@dataclass(frozen=True)
class WrittenOutputs(Method):
    """It writes each output into the same array, and answers differently each time, though it says otherwise."""

    name = reference = description = "written"
    arrays = "host"
    random = permutation_invariant = False

    def estimates(self, problem, sizes, streams):
        shape = len(problem.query), problem.value.shape[-1]
        output = KEPT.setdefault(shape, np.zeros(shape))
        for size in sizes:
            output += 1.0
            yield Estimate(size, size, output, None)


KEPT = {}


def test_a_map_may_write_all_features_into_one_array(rng):
    query, key, value = rng.normal(size=(3, 40, 8))
    omega = rng.normal(size=(16, 8))
    for estimate in (partial(kernel_estimate, query, key), partial(linear_attention, query, key, value, causal=True)):
        np.testing.assert_allclose(estimate(omega, map=WrittenMap()), estimate(omega, map=Positive()), rtol=1e-12)


def test_a_sampler_may_write_all_draws_into_one_array():
    first, second = (sample_omega(WrittenRows(), 4, 2, np.random.default_rng(seed)) for seed in range(2))
    assert np.all(first != second)


def test_other_outputs_of_the_same_draw_are_noticed_where_a_class_writes_them_into_one_array():
    claims = {claim.claim: claim for claim in judged([*of_method(WrittenOutputs(), 0)])}
    assert claims["nothing is random"].verdict == claims["other sizes have no effect"].verdict == REFUTED
