"""Rows to statistics: medians with exact intervals, paired comparisons, verdicts.

Intervals of a median and the sign test are two faces of one binomial fact and need no assumption on the tails: the
errors of random features are heavy-tailed, and a mean of 15 of them is a lottery.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from favorbench.metrics import METRICS
from favorbench.scenario import Scenario
from favorbench.store import read_manifest, read_scenario, read_trials

#: A cell is one value of each of these: an input and how it is measured.
CELL = ("input", "head", "scale", "value_scale", "query_len", "query_rows", "seq_len", "head_dim", "causal", "dtype")
ESTIMATOR = ("kind", "map", "sampler", "num_projections", "num_features")

STATS = {
    "median": lambda x: x.median(),
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(ddof=0),
    "q10": lambda x: x.quantile(0.1),
    "q90": lambda x: x.quantile(0.9),
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
    "n": lambda x: x.count(),
}

LEVEL = 0.95


class Interval(NamedTuple):
    """Bounds of a median, and the probability that they cover it."""

    low: float
    high: float
    coverage: float


class Comparison(NamedTuple):
    """Two paired samples of errors: the median of a / b, its interval, the sign test of log(a / b), and the verdict."""

    ratio: float
    low: float
    high: float
    n: int
    p_value: float
    verdict: str


class Results(NamedTuple):
    """A run, read back: ``trials`` has a row for each measurement, ``summary`` one for each cell and estimator."""

    path: Path
    manifest: Mapping[str, object]
    scenario: Scenario
    trials: pd.DataFrame
    summary: pd.DataFrame
    set_aside: tuple[str, ...] = ()


def load(path: str | Path) -> Results:
    """Read a run directory. Raises StoreError if it is not one, or is damaged."""
    path = Path(path)
    trials, manifest = read_trials(path), read_manifest(path)
    done = int(trials["draw"].nunique())  # a killed run had no time to count
    manifest |= {"draws_done": done, "complete": done == manifest["draws"]}
    return Results(path, manifest, read_scenario(path), trials, summarise(trials))


def summarise(trials: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and estimator: n, and for every metric median, 10 % and 90 % quantile and mean.

    ``mse_low``, ``mse_high`` bound the median of the mse; ``versus_uniform`` is the verdict of the paired comparison
    with uniform attention (sign test on the skill, Holm over all estimators of the cell).
    """
    with np.errstate(all="ignore"):  # errors of estimators that failed are infinite: inf - inf in a quantile is nan
        return _summarise(trials)


def _summarise(trials: pd.DataFrame) -> pd.DataFrame:
    groups = trials.groupby([*CELL, *ESTIMATOR], sort=False, dropna=False)
    columns: dict[str, pd.Series] = {"n": groups.size()}
    values = groups[list(METRICS)]  # all metrics at once: a function for each group would take longer than the sweep
    found = {"median": values.median(), "q10": values.quantile(0.1), "q90": values.quantile(0.9), "mean": values.mean()}
    for metric, (stat, frame) in itertools.product(METRICS, found.items()):
        columns[f"{metric}_{stat}"] = frame[metric]
    columns["mse_low"] = groups["mse"].agg(lambda x: median_interval(x.to_numpy()).low)
    columns["mse_high"] = groups["mse"].agg(lambda x: median_interval(x.to_numpy()).high)
    columns["sign_test"] = groups["skill"].agg(lambda x: sign_test(x.to_numpy()))
    summary = pd.DataFrame(columns).reset_index()
    summary["versus_uniform"] = _versus_uniform(summary)
    return summary.drop(columns="sign_test")


def median_interval(x: np.ndarray, level: float = LEVEL) -> Interval:
    """The narrowest pair of order statistics, equally far from both ends, that covers the median with ``level``.

    Exact for any continuous law: P(x_(j+1) <= median <= x_(n-j)) = 1 - 2 B(j; n, 1/2), B the binomial distribution
    function. With too few values for the level (n < 6 at 95 %) the whole range, with the coverage it has.
    David & Nagaraja 2003, Order Statistics, sec. 7.1.
    """
    ordered = np.sort(np.asarray(x, dtype=float))
    n, below = len(ordered), _fair_coin(len(ordered))
    j = max(int(np.sum(2.0 * below[: n // 2] <= 1.0 - level)) - 1, 0)
    return Interval(float(ordered[j]), float(ordered[n - 1 - j]), float(max(0.0, 1.0 - 2.0 * below[j])))


def interval_name(n: int) -> str:
    """What ``median_interval`` of n values is at its usual level: with fewer than 6 no interval covers that much."""
    return f"{LEVEL:.0%} interval".replace("%", " %") if 2.0 ** (1 - n) <= 1.0 - LEVEL else "smallest to largest"


def sign_test(differences: np.ndarray) -> float:
    """Two-sided p-value that positive and negative differences are equally likely; zeros and nan are left out."""
    positive, negative = int(np.sum(differences > 0)), int(np.sum(differences < 0))
    n = positive + negative
    return 1.0 if n == 0 else min(1.0, 2.0 * float(_fair_coin(n)[min(positive, negative)]))


@functools.cache
def _fair_coin(n: int) -> np.ndarray:
    """P(X <= j) for j = 0..n/2, X binomial(n, 1/2). scipy.special has it, and takes longer to import than a sweep."""
    heads = np.arange(n // 2)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - heads) / (heads + 1.0)))]) - n * math.log(2.0)
    return np.cumsum(np.exp(logs))


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Holm's adjusted p-values: each may be compared with the level of the whole family."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p)))))
    return adjusted


def compare(a: np.ndarray, b: np.ndarray, level: float = LEVEL) -> Comparison:
    """Is error ``a`` smaller than error ``b``, measured on the same draws? The ratio is the median of a / b.

    Verdict "better" or "worse" (of a) when the sign test rejects at ``level``, which is when the interval of the median
    ratio leaves 1 out; otherwise "no detectable difference".
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.log(np.asarray(a, dtype=float)) - np.log(np.asarray(b, dtype=float))
    log_ratio = log_ratio[~np.isnan(log_ratio)]
    if len(log_ratio) == 0:
        return Comparison(math.nan, math.nan, math.nan, 0, 1.0, "no detectable difference")
    low, high, _ = median_interval(log_ratio, level)
    p_value = sign_test(log_ratio)
    centre = float(np.median(log_ratio))
    return Comparison(
        math.exp(min(centre, 700.0)), math.exp(min(low, 700.0)), math.exp(min(high, 700.0)), len(log_ratio), p_value,
        verdict(p_value, centre, level),
    )  # fmt: skip


def verdict(p_value: float, log_ratio: float, level: float = LEVEL) -> str:
    """better, worse or no detectable difference, of a p-value and the sign of the log error ratio."""
    if p_value > 1.0 - level or log_ratio == 0:
        return "no detectable difference"
    return "better" if log_ratio < 0 else "worse"


def _versus_uniform(summary: pd.DataFrame) -> pd.Series:
    verdicts = pd.Series("-", index=summary.index)
    judged = summary["map"] != "uniform"
    for _, cell in summary[judged].groupby(list(CELL), sort=False, dropna=False):
        for index, p in zip(cell.index, holm(cell["sign_test"].tolist()), strict=True):
            verdicts[index] = verdict(p, -float(cell["skill_median"][index]))
    return verdicts
