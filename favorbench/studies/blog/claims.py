"""What the blog post's figures claim, as published and corrected, each claim held against an interval."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from favorbench.kernels import polynomial_features, polynomial_kernel
from favorbench.results.summary import rows_of
from favorbench.statistics import Interval, compare, holm, median_interval, sign_test
from favorbench.studies.blog.circles import CLASSES

LEVEL = 0.999  # of every interval behind a claim
TEST_LEVEL = 0.05  # of a family of sign tests, after Holm


class Claim(NamedTuple):
    """A statement, what was measured, and whether that bears it out. version: published, corrected or both."""

    version: str
    text: str
    measured: str
    holds: bool


def by_draw(trials: pd.DataFrame, name: str, sampler: str | None) -> pd.DataFrame:
    """The rows of one estimator or baseline, indexed by draw."""
    return rows_of(trials, name, sampler).set_index("draw")


def iid_vs_ortho_claims(trials: pd.DataFrame) -> list[Claim]:
    """Claims on the first error figure, for whichever version the trials hold."""
    uniform = by_draw(trials, "uniform", None)["mse"]
    claims = []
    iid, orthogonal = by_draw(trials, "trig-blog", "iid"), by_draw(trials, "trig-blog", "orthogonal-blog")
    if len(orthogonal):
        last = _at(orthogonal, 192)
        claims += [
            _ratio("published", "orthogonal has less error than IID, all R", orthogonal["mse"], iid["mse"], high=1),
            _ratio(
                "published",
                "orthogonal reaches uniform's error at R = 192 (within a factor of 2)",
                last,
                uniform,
                low=0.5,
                high=2,
            ),
            _turns_back(orthogonal, uniform),
        ]
    iid, orthogonal = by_draw(trials, "trig", "iid"), by_draw(trials, "trig", "orthogonal")
    if len(orthogonal):
        text = "over all R orthogonality changes the error by less than a factor of 10"
        claims += [
            _no_difference_at_any_size("no detectable difference between orthogonal and IID at any R", orthogonal, iid),
            _ratio("corrected", text, orthogonal["mse"], iid["mse"], low=0.1, high=10),
            _worse_at_every_size("orthogonal is worse than uniform attention at every R", orthogonal),
            _worse_at_every_size("IID is worse than uniform attention at every R", iid),
        ]
    return claims


def trig_vs_positive_claims(trials: pd.DataFrame) -> list[Claim]:
    """Claims on the second error figure, for whichever version the trials hold."""
    uniform = by_draw(trials, "uniform", None)["mse"]
    claims = []
    versions = {"published": ("trig-blog", "orthogonal-blog"), "corrected": ("trig", "orthogonal")}
    for version, (trig_map, sampler) in versions.items():
        trig, positive = by_draw(trials, trig_map, sampler), by_draw(trials, "positive", sampler)
        if trig.empty:
            continue
        claims += [
            _ratio(version, "positive has less error than sin/cos, all R", positive["mse"], trig["mse"], high=1),
            _ratio(version, "positive is worse than uniform attention, all R", positive["mse"], uniform, low=1),
            _ratio(version, "positive is worse than uniform attention at R = 192", _at(positive, 192), uniform, low=1),
        ]
        claims.append(_flat(positive, uniform) if version == "published" else _half_negative(trig))
    published, corrected = (
        by_draw(trials, "positive", sampler)["mse"] for sampler in ("orthogonal-blog", "orthogonal")
    )
    if len(published) and len(corrected):
        text = "the unbiased positive estimate scores worse than the published, biased one"
        claims.append(_ratio("corrected", text, corrected, published, low=1))
    return claims


def kernel_trick_claims(circles: pd.DataFrame) -> list[Claim]:
    """The explicit features give the kernel; what no line separates in the plane, a plane separates after the map."""
    x = circles[["x1", "x2"]].to_numpy()
    inner = (circles["class"] == CLASSES[1]).to_numpy()
    phi = polynomial_features(x, degree=2)
    difference = float(np.max(np.abs(phi @ phi.T - polynomial_kernel(x, x, degree=2))))
    # Either side is a sum of three terms of at most |x|^2 |y|^2 after at most four roundings each.
    bound = 24 * np.finfo(float).eps / 2 * float(np.max(np.sum(x * x, axis=-1))) ** 2
    # A line through the inner points' mean always has outer points beyond it: so the hulls meet.
    from_mean = x[~inner] - x[inner].mean(axis=0)
    angles = np.sort(np.arctan2(from_mean[:, 1], from_mean[:, 0]))
    gaps = np.diff(angles, append=angles[0] + 2 * math.pi)
    radius2 = phi[:, 0] + phi[:, 2]
    outside, inside = float(radius2[~inner].min()), float(radius2[inner].max())
    return [
        Claim(
            "both", "phi(x).phi(y) = (x.y)^2 for all pairs",
            f"largest difference {difference:.1e}, rounding bound {bound:.1e}", bool(difference <= bound),
        ),
        Claim(
            "both", "in the plane no line separates the circles",
            f"largest gap between outer points seen from inside: {math.degrees(gaps.max()):.0f} of 180 degrees",
            bool(gaps.max() < math.pi),
        ),
        Claim(
            "both", "after the map the plane |x|^2 = c does",
            f"outer >= {outside:.2f}, inner <= {inside:.2f}", outside > inside,
        ),
    ]  # fmt: skip


def _at(rows: pd.DataFrame, size: int) -> pd.Series:
    return rows[rows["num_projections"] == size]["mse"]


def _ratio(version: str, text: str, a: pd.Series, b: pd.Series, low: float = 0.0, high: float = math.inf) -> Claim:
    """The median of a / b over their common draws lies between low and high, with its whole interval."""
    shared = a.index.intersection(b.index)
    result = compare(a[shared].to_numpy(), b[shared].to_numpy(), LEVEL)
    measured = f"median ratio {result.ratio:.3g} [{result.low:.3g}, {result.high:.3g}], {result.n} draws"
    return Claim(version, text, measured, bool(low < result.low and result.high < high))


def _turns_back(orthogonal: pd.DataFrame, uniform: pd.Series) -> Claim:
    """The published orthogonal curve rises again: each R has draws of its own, so the intervals must be apart."""
    before, after = _relative_to_uniform(orthogonal, uniform, (128, 192))
    measured = f"[{after.low:.2g}, {after.high:.2g}] against [{before.low:.2g}, {before.high:.2g}] times uniform"
    return Claim("published", "and more R makes it worse again: R = 192 against 128", measured, after.low > before.high)


def _flat(positive: pd.DataFrame, uniform: pd.Series) -> Claim:
    """The published positive curve does not fall with R: at 192 it is within 25 % of what it was at 16."""
    first, last = _relative_to_uniform(positive, uniform, (16, 192))
    measured = f"[{first.low:.3g}, {first.high:.3g}], then [{last.low:.3g}, {last.high:.3g}] times uniform"
    holds = last.low > 0.8 * first.high and last.high < 1.25 * first.low
    return Claim("published", "positive does not improve from R = 16 to 192 (within 25 %)", measured, holds)


def _half_negative(trig: pd.DataFrame) -> Claim:
    share = median_interval(trig["bad_normalisers"].to_numpy(), LEVEL)
    measured = f"median share [{share.low:.3f}, {share.high:.3f}]"
    return Claim(
        "corrected", "about half of sin/cos's normalisers are negative", measured, share.low > 0.4 and share.high < 0.6
    )


def _relative_to_uniform(rows: pd.DataFrame, uniform: pd.Series, sizes: Sequence[int]) -> list[Interval]:
    return [median_interval((_at(rows, s) / uniform[_at(rows, s).index]).to_numpy(), LEVEL) for s in sizes]


def _worse_at_every_size(text: str, rows: pd.DataFrame) -> Claim:
    """The skill is below 0 at every R: one sign test for each R, Holm over all."""
    medians, p_values = [], []
    for _, skill in rows.groupby("num_projections")["skill"]:
        medians.append(float(skill.median()))
        p_values.append(sign_test(skill.to_numpy()))
    best, p = max(medians), float(holm(p_values).max())
    return Claim(
        "corrected", text, f"best median skill {best:.2g}, largest p (Holm) {p:.1g}", best < 0 and p < TEST_LEVEL
    )


def _no_difference_at_any_size(text: str, a: pd.DataFrame, b: pd.DataFrame) -> Claim:
    p_values = [
        compare(rows["mse"].to_numpy(), b["mse"][rows.index].to_numpy()).p_value
        for _, rows in a.groupby("num_projections")
    ]
    p = float(holm(p_values).min())
    return Claim("corrected", text, f"{len(p_values)} sign tests, smallest p (Holm) {p:.2g}", p > TEST_LEVEL)


FIGURE_CLAIMS = {"iid-vs-ortho": iid_vs_ortho_claims, "trig-vs-positive": trig_vs_positive_claims}
