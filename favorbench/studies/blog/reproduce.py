"""The blog post's four figures, as published and corrected, with every claim checked against an interval.

The post: "Performers: The Kernel Trick, Random Fourier Features, and Attention", teddykoker.com, 2020. Protocol of its
script: L = 1024, d = 16, R = 16, 32, ..., 192, 15 draws, inputs and projections redrawn for every R; q, k and v all
times a temperature of 1.0 (first figure) or 1.5 (second); mean and population standard deviation on a log axis.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from favorbench.engine.cluster.connection import Cluster
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Study
from favorbench.files import write_text
from favorbench.formats import format_value
from favorbench.run import Progress, sweep
from favorbench.studies.blog import figure as blog
from favorbench.studies.blog import kernel_trick
from favorbench.studies.blog.circles import circles
from favorbench.studies.blog.claims import FIGURE_CLAIMS, Claim, by_draw, kernel_trick_claims


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
        "The published curves compare two wrong bandwidths: the 2 pi inside sin and cos makes the IID rows 2 pi too "
        "long, and the orthogonal rows have norm sqrt(d/R), so theirs passes the right bandwidth near R = 4 pi^2 = 39 "
        "and then tends to a kernel that ignores the query. With the right map and rows of chi(d) norm the advantage "
        "of orthogonality falls from five orders of magnitude to what sampling noise can hide, and neither comes near "
        "the mean of V."
    ),
    "trig-vs-positive": (
        "The published positive curve is pure bias: rows of norm sqrt(d/R) shrink as R grows, the kernel tends to "
        "exp(-|x|^2/2 - |y|^2/2) and no longer sees the query, which at this temperature happens to score better than "
        "the unbiased estimate. With rows of chi(d) norm positive features still beat sin/cos by orders of magnitude, "
        "but both are worse than answering the mean of V, at every R shown."
    ),
    "kernel-trick": (
        "Nothing changed in the mathematics: the degree-2 features have the inner product (x.y)^2 exactly. The "
        "published script draws x2^2 on the third axis as well; here it is sqrt2 x1 x2."
    ),
}


def reproduce(
    figure: str,
    version: str,
    out: Path,
    workers: int | Cluster,
    progress: Progress | None = None,
    seed: int | None = None,
) -> list[Report]:
    """Run, draw and check one figure or all. figure: a name or "all"; version: published, corrected or both.

    Raw runs go to out/runs (resumable), figures and their CSVs to out, the claims to out/<figure>.md.
    """
    names = [*CURVES, "kernel-trick"] if figure == "all" else [figure]
    reports = []
    with workers if isinstance(workers, Cluster) else contextlib.nullcontext():  # once, for all figures
        for name in names:
            if name == "kernel-trick":
                reports.append(_kernel_trick(out, seed or 0))
            else:
                reports.append(_reproduce(name, version, out, workers, progress, seed))
            write_text(out / f"{name}.md", markdown(reports[-1]))
    return reports


def _reproduce(
    name: str, version: str, out: Path, workers: int | Cluster, progress: Progress | None, seed: int | None
) -> Report:
    curves = [curve for curve in CURVES[name] if version in ("both", curve.version)]
    chosen = {
        "maps": list(dict.fromkeys(curve.map for curve in curves)),
        "samplers": list(dict.fromkeys(curve.sampler for curve in curves)),
    }
    study = Study.of(load_scenario(name, {"seed": seed} | chosen))
    results = sweep(study, out / "runs" / f"{name}-{study.digest[:6]}", workers, progress, cluster="none")
    data = blog_statistics(results.trials, curves)
    files = blog.draw(name, study.scenario.scale[0], data, baseline_statistics(results.trials), out)
    claims = [claim for claim in FIGURE_CLAIMS[name](results.trials) if claim.version in {c.version for c in curves}]
    return Report(name, data, CHANGED[name], tuple(claims), tuple(files))


def blog_statistics(trials: pd.DataFrame, curves: Sequence[Curve]) -> pd.DataFrame:
    """The post's statistics for each curve and R: mean and population standard deviation; the median beside them."""
    records = []
    for curve in curves:
        for size, mse in by_draw(trials, curve.map, curve.sampler).groupby("num_projections")["mse"]:
            records.append(
                {
                    "version": curve.version,
                    "curve": curve.label,
                    "map": curve.map,
                    "sampler": curve.sampler,
                    "R": size,
                    "n": len(mse),
                    "mean": mse.mean(),
                    "std": mse.std(ddof=0),
                    "median": mse.median(),
                }
            )
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


def _kernel_trick(out: Path, seed: int) -> Report:
    data = circles(seed)
    claims = tuple(kernel_trick_claims(data))
    return Report("kernel-trick", data.iloc[:0], CHANGED["kernel-trick"], claims, tuple(kernel_trick.draw(out, seed)))
