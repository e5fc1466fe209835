"""The blog post's four figures, as published and corrected, with every claim checked against an interval.

The post: "Performers: The Kernel Trick, Random Fourier Features, and Attention", teddykoker.com, 2020. Protocol of its
script: L = 1024, d = 16, R = 16, 32, ..., 192, 15 draws, inputs and projections redrawn for every R; q, k and v all
times a temperature of 1.0 (first figure) or 1.5 (second); mean and population standard deviation on a log axis.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.figures import blog, kernel_trick
from favorbench.kernels import polynomial_features, polynomial_kernel
from favorbench.run import Progress, sweep
from favorbench.scenario import load_scenario, override
from favorbench.store import write_text
from favorbench.summary import compare, holm, median_interval, sign_test
from favorbench.tables import format_value

CLAIM_LEVEL = 0.999  # of every interval and test behind a claim


class Claim(NamedTuple):
    """A statement, what was measured, and whether that bears it out."""

    version: str
    text: str
    measured: str
    holds: bool


class Report(NamedTuple):
    """A reproduced figure: its table (published and corrected side by side), what changed, claims, files."""

    figure: str
    table: pd.DataFrame
    changed: str
    claims: tuple[Claim, ...]
    files: tuple[Path, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "figure": self.figure,
            "changed": self.changed,
            "claims": [claim._asdict() for claim in self.claims],
            "table": self.table.to_dict(orient="records"),
            "files": [str(file) for file in self.files],
        }


class Curve(NamedTuple):
    """One line of a figure: which map and sampler, and what the post calls it."""

    version: str
    label: str
    map: str
    sampler: str


CURVES = {
    "iid-vs-ortho": (
        Curve("published", "IID", "trig-blog", "iid"),
        Curve("published", "orthogonal", "trig-blog", "orthogonal-blog"),
        Curve("corrected", "IID", "trig", "iid"),
        Curve("corrected", "orthogonal", "trig", "orthogonal"),
    ),
    "trig-vs-positive": (
        Curve("published", "sin/cos", "trig-blog", "orthogonal-blog"),
        Curve("published", "positive", "positive", "orthogonal-blog"),
        Curve("corrected", "sin/cos", "trig", "orthogonal"),
        Curve("corrected", "positive", "positive", "orthogonal"),
    ),
}

CHANGED = {
    "iid-vs-ortho": (
        "The published curves compare two wrong bandwidths: the 2 pi inside sin and cos makes the IID rows 2 pi too long, and "
        "the orthogonal rows have norm sqrt(d/R), so theirs passes the right bandwidth near R = 4 pi^2 = 39 and then tends to a "
        "kernel that ignores the query. With the right map and rows of chi(d) norm the advantage of orthogonality falls from "
        "five orders of magnitude to what sampling noise can hide, and neither comes near the mean of V."
    ),
    "trig-vs-positive": (
        "The published positive curve is pure bias: rows of norm sqrt(d/R) shrink as R grows, the kernel tends to "
        "exp(-|x|^2/2 - |y|^2/2) and no longer sees the query, which at this temperature happens to score better than the unbiased "
        "estimate. With rows of chi(d) norm positive features still beat sin/cos by orders of magnitude, but both are worse "
        "than answering the mean of V, at every R shown."
    ),
    "kernel-trick": (
        "Nothing changed in the mathematics: the degree-2 features have the inner product (x.y)^2 exactly. The published script "
        "draws x2^2 on the third axis as well; here it is sqrt2 x1 x2."
    ),
}


def reproduce(
    figure: str, version: str, out: Path, workers: int, progress: Progress | None = None, seed: int | None = None
) -> list[Report]:
    """Run, draw and check one figure or all. figure: a name or "all"; version: published, corrected or both.

    Raw runs go to out/runs (resumable), figures and their CSVs to out, the claims to out/<figure>.md.
    """
    names = [*CURVES, "kernel-trick"] if figure == "all" else [figure]
    reports = []
    for name in names:
        if name == "kernel-trick":
            reports.append(_kernel_trick(out, seed or 0))
        else:
            reports.append(_reproduce(name, version, out, workers, progress, seed))
        write_text(out / f"{name}.md", markdown(reports[-1]))
    return reports


def _reproduce(name: str, version: str, out: Path, workers: int, progress: Progress | None, seed: int | None) -> Report:
    curves = [curve for curve in CURVES[name] if version in ("both", curve.version)]
    study = load_scenario(name, {"seed": seed})
    study = override(
        study,
        maps=tuple(dict.fromkeys(c.map for c in curves)),
        samplers=tuple(dict.fromkeys(c.sampler for c in curves)),
    )
    results = sweep(study, out / "runs" / f"{name}-{study.digest()[:6]}", workers, progress)
    data = blog_statistics(results.trials, curves)
    files = blog.draw(name, data, baseline_statistics(results.trials), out)
    claims = [claim for claim in _CLAIMS[name](results.trials) if claim.version in {c.version for c in curves}]
    return Report(name, data, CHANGED[name], tuple(claims), tuple(files))


def blog_statistics(trials: pd.DataFrame, curves: Sequence[Curve]) -> pd.DataFrame:
    """The post's statistics for each curve and R: mean and population standard deviation; the median beside them."""
    records = []
    for curve in curves:
        for size, mse in _errors(trials, curve.map, curve.sampler).groupby("num_projections")["mse"]:
            records.append(
                {"version": curve.version, "curve": curve.label, "map": curve.map, "sampler": curve.sampler, "R": size,
                 "n": len(mse), "mean": mse.mean(), "std": mse.std(ddof=0), "median": mse.median()}
            )  # fmt: skip
    return pd.DataFrame(records)


def baseline_statistics(trials: pd.DataFrame) -> pd.DataFrame:
    """Mean mse of each baseline at each R: every draw has one R, its own."""
    size_of_draw = trials[trials["kind"] == "map"].groupby("draw")["num_projections"].first()
    rows = trials[trials["kind"] == "baseline"].copy()
    rows["R"] = rows["draw"].map(size_of_draw)
    return rows.groupby(["map", "R"], sort=False)["mse"].mean().rename("mean").reset_index()


def markdown(report: Report) -> str:
    """The report as a file: what changed, the claims, the table."""
    lines = [
        f"# {report.figure}",
        "",
        report.changed,
        "",
        "| version | claim | measured | holds |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| {c.version} | {c.text} | {c.measured} | {'yes' if c.holds else 'NO'} |" for c in report.claims]
    wide = side_by_side(report)
    if len(wide):
        lines += ["", "Mean ± population standard deviation of the output MSE.", ""]
        lines += ["| " + " | ".join(wide.columns) + " |", "|" + " ---: |" * len(wide.columns)]
        lines += ["| " + " | ".join(map(str, row)) + " |" for row in wide.itertuples(index=False)]
    return "\n".join([*lines, ""])


def side_by_side(report: Report) -> pd.DataFrame:
    """R in rows, the curves of both versions in columns, as "mean ± std"."""
    if "version" not in report.table:
        return report.table.iloc[:0]
    columns: dict[str, list[str]] = {"R": [f"{size}" for size in sorted(set(report.table["R"]))]}
    for (version, curve), rows in report.table.groupby(["version", "curve"], sort=False):
        columns[f"{version} {curve}"] = [
            f"{format_value(mean, 'mse')} ± {format_value(std, 'mse')}"
            for mean, std in zip(rows["mean"], rows["std"], strict=True)
        ]
    return pd.DataFrame(columns)


def _errors(trials: pd.DataFrame, name: str, sampler: str) -> pd.DataFrame:
    """Rows of one estimator, indexed by draw."""
    return trials[(trials["map"] == name) & (trials["sampler"] == sampler)].set_index("draw")


def _ratio_claim(version: str, text: str, a: pd.Series, b: pd.Series, holds: Callable[[float, float], bool]) -> Claim:
    """A claim on the median of a / b over their common draws: it holds if its interval (low, high) satisfies ``holds``."""
    shared = a.index.intersection(b.index)
    result = compare(a[shared].to_numpy(), b[shared].to_numpy(), CLAIM_LEVEL)
    measured = f"median ratio {result.ratio:.3g} [{result.low:.3g}, {result.high:.3g}], {result.n} draws"
    return Claim(version, text, measured, holds(result.low, result.high))


def _worse_at_every_size(version: str, text: str, rows: pd.DataFrame) -> Claim:
    """The skill is below 0 at every R: one sign test for each R, Holm over all."""
    medians, p_values = [], []
    for _, skill in rows.groupby("num_projections")["skill"]:
        medians.append(float(skill.median()))
        p_values.append(sign_test(skill.to_numpy()))
    worst, p = max(medians), float(holm(p_values).max())
    return Claim(version, text, f"best median skill {worst:.2g}, largest p (Holm) {p:.1g}", worst < 0 and p < 0.05)


def _no_difference_at_any_size(version: str, text: str, a: pd.DataFrame, b: pd.DataFrame) -> Claim:
    p_values = []
    for _, rows in a.groupby("num_projections"):
        p_values.append(compare(rows["mse"].to_numpy(), b["mse"][rows.index].to_numpy()).p_value)
    p = float(holm(p_values).min())
    return Claim(version, text, f"{len(p_values)} sign tests, smallest p (Holm) {p:.2g}", p > 1 - CLAIM_LEVEL)


def _iid_vs_ortho(trials: pd.DataFrame) -> list[Claim]:
    uniform = _errors(trials, "uniform", "none")["mse"]
    published_iid, published = _errors(trials, "trig-blog", "iid"), _errors(trials, "trig-blog", "orthogonal-blog")
    iid, orthogonal = _errors(trials, "trig", "iid"), _errors(trials, "trig", "orthogonal")
    claims = []
    if len(published):
        at = {size: rows["mse"] for size, rows in published.groupby("num_projections")}
        turn = {s: median_interval((at[s] / uniform[at[s].index]).to_numpy(), CLAIM_LEVEL) for s in (128, 192)}
        claims += [
            _ratio_claim("published", "orthogonal has less error than IID, all R", published["mse"], published_iid["mse"], lambda low, high: high < 1),
            _ratio_claim("published", "orthogonal reaches uniform's error by R = 192 (within a factor of 2)", at[192], uniform, lambda low, high: low > 0.5 and high < 2),
            Claim("published", "and more R makes it worse again: R = 192 against 128, as multiples of uniform",
                  f"[{turn[192].low:.2g}, {turn[192].high:.2g}] against [{turn[128].low:.2g}, {turn[128].high:.2g}]", turn[192].low > turn[128].high),
        ]  # fmt: skip
    if len(orthogonal):
        claims += [
            _no_difference_at_any_size("corrected", "orthogonal and IID: no detectable difference at any one R", orthogonal, iid),
            _ratio_claim("corrected", "over all R orthogonality changes the error by less than a factor of 10", orthogonal["mse"], iid["mse"], lambda low, high: low > 0.1 and high < 10),
            _worse_at_every_size("corrected", "orthogonal is worse than uniform attention at every R", orthogonal),
            _worse_at_every_size("corrected", "IID is worse than uniform attention at every R", iid),
        ]  # fmt: skip
    return claims


def _trig_vs_positive(trials: pd.DataFrame) -> list[Claim]:
    uniform = _errors(trials, "uniform", "none")["mse"]
    claims = []
    for version, trig_map, sampler in (
        ("published", "trig-blog", "orthogonal-blog"),
        ("corrected", "trig", "orthogonal"),
    ):
        trig, positive = _errors(trials, trig_map, sampler), _errors(trials, "positive", sampler)
        if trig.empty:
            continue
        last = positive[positive["num_projections"] == positive["num_projections"].max()]["mse"]
        claims += [
            _ratio_claim(version, "positive has less error than sin/cos, all R", positive["mse"], trig["mse"], lambda low, high: high < 1),
            _ratio_claim(version, "positive is worse than uniform attention, all R", positive["mse"], uniform, lambda low, high: low > 1),
            _ratio_claim(version, "and still is at R = 192", last, uniform, lambda low, high: low > 1),
        ]  # fmt: skip
        if version == "published":
            claims.append(_flat(positive, uniform))
        else:
            claims.append(_ratio_claim(version, "unbiased positive features score worse than the published, biased ones", positive["mse"],
                                       _errors(trials, "positive", "orthogonal-blog")["mse"], lambda low, high: low > 1))  # fmt: skip
            bad = median_interval(trig["bad_normalisers"].to_numpy(), CLAIM_LEVEL)
            claims.append(Claim(version, "about half of the normalisers of sin/cos are negative",
                                f"median share [{bad.low:.3f}, {bad.high:.3f}]", bad.low > 0.4 and bad.high < 0.6))  # fmt: skip
    return claims


def _flat(positive: pd.DataFrame, uniform: pd.Series) -> Claim:
    """The published positive curve does not fall with R: at 192 it is within 25 % of what it was at 16."""
    relative = positive["mse"] / uniform[positive.index]
    first, last = (
        median_interval(relative[positive["num_projections"] == s].to_numpy(), CLAIM_LEVEL) for s in (16, 192)
    )
    measured = f"R = 16: [{first.low:.3g}, {first.high:.3g}], R = 192: [{last.low:.3g}, {last.high:.3g}] times uniform"
    holds = last.low > 0.8 * first.high and last.high < 1.25 * first.low
    return Claim("published", "positive does not improve from R = 16 to 192 (within 25 %)", measured, holds)


def _kernel_trick(out: Path, seed: int) -> Report:
    data = kernel_trick.circles(seed)
    x = data[["x1", "x2"]].to_numpy()
    phi = polynomial_features(x, degree=2)
    difference = float(np.max(np.abs(phi @ phi.T - polynomial_kernel(x, x, degree=2))))
    largest = float(np.max(np.sum(x * x, axis=-1)))
    bound = 8 * np.finfo(float).eps * largest**2  # 3 products and sums of terms of at most |x|^2 |y|^2, twice
    radius2 = phi[:, 0] + phi[:, 2]
    inner = (data["class"] == kernel_trick.CLASSES[1]).to_numpy()
    # Where the hulls of the classes meet no line can separate them: here the inner points' mean lies among the outer.
    surrounded = all(
        np.any((x[~inner] - x[inner].mean(axis=0)) @ [np.cos(a), np.sin(a)] > 0) for a in np.linspace(0, 2 * np.pi, 360)
    )
    claims = (
        Claim("both", "phi(x).phi(y) = (x.y)^2 for all pairs", f"largest difference {difference:.1e}, rounding bound {bound:.1e}", difference <= bound),
        Claim("both", "in the plane no line separates the circles", "outer points on every side of the inner ones", surrounded),
        Claim("both", "after the map the plane x1^2 + x2^2 = c does", f"outer >= {radius2[~inner].min():.2f}, inner <= {radius2[inner].max():.2f}",
              bool(radius2[~inner].min() > radius2[inner].max())),
    )  # fmt: skip
    return Report("kernel-trick", data.iloc[:0], CHANGED["kernel-trick"], claims, tuple(kernel_trick.draw(out, seed)))


_CLAIMS = {"iid-vs-ortho": _iid_vs_ortho, "trig-vs-positive": _trig_vs_positive}
