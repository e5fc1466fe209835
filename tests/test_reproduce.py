"""The reproduction: the protocol is the post's, the numbers are those of its estimators, and its claims can fail."""

import re

import numpy as np
import pandas as pd
import pytest

from favorbench.engine.plan import plan
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Study
from favorbench.studies.blog import (
    CURVES,
    blog_statistics,
    iid_vs_ortho_claims,
    kernel_trick_claims,
    reproduce,
    trig_vs_positive_claims,
)
from favorbench.studies.blog.figure import circles


@pytest.mark.parametrize("name, temperature", [("iid-vs-ortho", 1.0), ("trig-vs-positive", 1.5)])
def test_the_protocol_is_the_posts(name, temperature):
    scenario = load_scenario(name)
    assert scenario.sizes(16) == tuple(range(16, 193, 16))
    assert (scenario.scale, scenario.value_scale, scenario.trials) == ((temperature,), temperature, 15)
    draws = plan(Study.of(scenario))
    assert len(draws) == 180 and all(len(draw.sizes) == 1 for draw in draws)  # all redrawn for every R
    assert {(d.head.seq_len, d.head.head_dim) for d in draws} == {(1024, 16)}
    assert {c.map for c in CURVES[name]} <= set(scenario.maps)
    assert {c.sampler for c in CURVES[name]} <= set(scenario.samplers)


def test_statistics_are_mean_and_population_deviation():
    trials = pd.DataFrame(
        {
            "draw": [0, 1],
            "estimator": "trig-blog",
            "sampler": "iid",
            "num_projections": 16,
            "mse": [1.0, 3.0],
            "kind": "map",
        }
    )
    (row,) = blog_statistics(trials, CURVES["iid-vs-ortho"][:1]).to_dict(orient="records")
    assert (row["mean"], row["std"], row["median"], row["n"]) == (2.0, 1.0, 2.0, 2)


def made_up(values):
    """Trials with the mse of each (map, sampler) as a function of R, times a little noise; uniform is 1."""
    rng = np.random.default_rng(0)
    rows, draw = [], 0
    for size in range(16, 193, 16):
        for _ in range(15):
            for (name, sampler), mse in {("uniform", None): lambda _: 1.0, **values}.items():
                error = mse(size) * np.exp(0.02 * rng.normal())
                rows.append({"draw": draw, "estimator": name, "sampler": sampler, "num_projections": size, "mse": error,
                             "skill": 1 - error, "bad_normalisers": 0.5})  # fmt: skip
            draw += 1
    return pd.DataFrame(rows)


def test_claims_hold_on_true_cases_and_fail_on_their_opposites():
    """Every claim of the two error figures, on made-up trials that bear it out and on trials that do not."""
    noisy = {("trig", "iid"): lambda r: 10.0, ("trig", "orthogonal"): lambda r: 10.0}
    truth = {("trig-blog", "iid"): lambda r: 1e3, ("trig-blog", "orthogonal-blog"): lambda r: 0.6 + r / 500} | noisy
    assert [c.holds for c in iid_vs_ortho_claims(made_up(truth))] == [True] * 7
    wrong = {("trig-blog", "iid"): lambda r: 1e-3, ("trig-blog", "orthogonal-blog"): lambda r: 50.0 / r}
    wrong |= {("trig", "iid"): lambda r: 0.5, ("trig", "orthogonal"): lambda r: 0.01}
    assert [c.holds for c in iid_vs_ortho_claims(made_up(wrong))] == [False] * 7

    positive = {("positive", "orthogonal-blog"): lambda r: 1.1, ("positive", "orthogonal"): lambda r: 1.6}
    trig = {("trig-blog", "orthogonal-blog"): lambda r: 1e3, ("trig", "orthogonal"): lambda r: 1e3}
    assert [c.holds for c in trig_vs_positive_claims(made_up(positive | trig))] == [True] * 9
    falling = {("positive", "orthogonal-blog"): lambda r: 8 / r, ("positive", "orthogonal"): lambda r: 4 / r}
    good_trig = {("trig-blog", "orthogonal-blog"): lambda r: 1e-3, ("trig", "orthogonal"): lambda r: 1e-3}
    trials = made_up(falling | good_trig).assign(bad_normalisers=0.1)
    assert [c.holds for c in trig_vs_positive_claims(trials)] == [False] * 9


def test_kernel_trick_claims_can_fail():
    data = circles()
    assert all(claim.holds for claim in kernel_trick_claims(data))
    mixed = data.assign(**{"class": np.roll(data["class"], 64)})
    assert [claim.holds for claim in kernel_trick_claims(mixed)] == [True, True, False]
    apart = data.assign(x1=data["x1"] + 5 * (data["class"] == data["class"].iloc[-1]))
    assert not kernel_trick_claims(apart)[1].holds


def test_kernel_trick_is_written_and_reported():
    from pathlib import Path

    (report,) = reproduce("kernel-trick", "both", Path("out"), workers=1)
    assert {f.name for f in report.files} == {
        f"{n}.{s}" for n in ("circles", "poly-circles") for s in ("png", "svg", "csv")
    }
    written = Path("out/kernel-trick.md").read_text()
    assert "| both | phi(x).phi(y) = (x.y)^2 for all pairs |" in written
    lines = [line for line in written.splitlines() if line.startswith("|")]
    assert len(lines) == 5 and {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {5}  # |x| is in one cell
    assert len(report.as_dict()["claims"]) == 3
