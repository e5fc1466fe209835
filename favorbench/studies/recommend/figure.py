"""Error against cost, with the target and the choice: a panel for each of a few heads, one for all of many."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.canvas import plotted
from favorbench.studies.recommend.answer import Decision, Recommendation, percent

PANELS = 6  # heads with a panel of their own, at most

MOST = 10.0  # errors above are drawn here, as an arrow

_DOTS: dict[str, Any] = {"linestyle": "none", "markersize": 5}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "baseline": ("trivial answers", _DOTS | {"color": "0.45", "marker": "x"}),
    "map": ("maps", _DOTS | {"color": style.COLOURS[0], "marker": "o"}),
    "method": ("methods", _DOTS | {"color": style.COLOURS[2], "marker": "s"}),
}

FREE = 1e-3  # of exact attention's cost, where what multiplies nothing stands

_CHOICE: dict[str, Any] = {
    "marker": "*",
    "markersize": 17,
    "color": "#D55E00",
    "markeredgecolor": "black",
    "linestyle": "none",
    "zorder": 4,
}


def draw(found: Recommendation, directory: Path) -> list[Path]:
    """Write the figure; returns the files, none before the first draw. Raises StoreError."""
    begun = [decision for decision in found.decisions if decision.setting is not None]
    if not begun:
        return []
    few = len(begun) <= PANELS
    with style.context():
        columns = min(len(begun), 2) if few else 1
        figure, axes = style.panels(len(begun) if few else 1, columns, *((4.6, 8.4) if columns == 1 else (3.6, 5.6)))
        if few:
            for ax, decision in zip(axes, begun, strict=True):
                _draw_head(ax, found, decision)
        else:
            _draw_heads(axes[0], found, begun)
        style.finish(figure, axes, style.plain(_caption(found, few)))
        return style.save(figure, directory, "recommend", _data(begun))


def plot(found: Recommendation, ax: "Axes | Sequence[Axes] | None") -> "Axes | list[Axes]":
    """``Recommendation.plot``."""
    return plotted("recommend", lambda: draw(found, Path()), ax)


def _draw_head(ax: Axes, found: Recommendation, decision: Decision) -> None:
    """The candidates that were measured: median, and a line up to the quantile that is asked for."""
    ax.axhline(decision.uniform, color="black", linestyle="--", linewidth=1.2, label="uniform (mean of V)")
    for kind, (words, look) in _KINDS.items():
        points = [point for point in decision.points if point.setting.kind == kind and point.multiplications]
        costs = [point.multiplications / found.exact for point in points]
        medians, quantiles = ([min(getattr(p, name), MOST) for p in points] for name in ("median", "quantile"))
        if points:
            ax.vlines(costs, medians, quantiles, color=look["color"], linewidth=1.2, alpha=0.6)
            ax.plot(costs, medians, label=words, **look)
    _frame(ax, found, [min(getattr(p, name), MOST) for p in decision.points for name in ("median", "quantile")])
    sure, name = decision.outcome == "certified", style.plain(decision.setting.text if decision.setting else "")
    end = decision.bound if math.isfinite(decision.bound) else decision.quantile
    look: dict[str, Any] = _CHOICE | ({} if sure else {"markerfacecolor": "white"})
    ax.plot([max(decision.share, FREE)], [min(end, MOST)], label=_of_choice(sure), **look)
    said = {"certified": "", "nothing": "nothing; best: ", "not finished": "not certified: "}[decision.outcome]
    ax.set_title(f"{style.plain(decision.head)}: {said}{name}", fontsize=10.5)


def _of_choice(sure: bool) -> str:
    return "the choice, at its certified bound" if sure else "no choice: the best, at its bound"


def _draw_heads(ax: Axes, found: Recommendation, decisions: Sequence[Decision]) -> None:
    """One point for each head: its choice, or the best that there is."""
    sure = [d for d in decisions if d.outcome == "certified"]
    names = list(dict.fromkeys(d.setting.estimator for d in sure if d.setting))
    for number, name in enumerate(names):
        mine = [d for d in sure if d.setting and d.setting.estimator == name]
        look = style.look(number) | {"linestyle": "none", "markersize": 7}
        ax.plot([d.share for d in mine], [d.bound for d in mine], label=style.plain(f"{name} ({len(mine)})"), **look)
    rest = [d for d in decisions if d.outcome != "certified"]
    ends = [d.bound if math.isfinite(d.bound) else d.quantile for d in rest]
    if rest:
        label = f"nothing certified ({len(rest)}): the best"
        costs = [max(d.share, FREE) for d in rest]
        ax.plot(costs, np.minimum(ends, MOST), linestyle="none", marker="x", color="0.35", label=label)
    _frame(ax, found, [*(d.bound for d in sure), *np.minimum(ends, MOST)])
    ax.set_title(style.plain(f"{len(decisions)} heads of {found.title}"))


def _frame(ax: Axes, found: Recommendation, errors: Sequence[float]) -> None:
    ax.axhline(found.target, color="black", linestyle=":", label=f"target {found.target:g}")
    ax.axvline(1.0, color="0.4", linestyle="--", linewidth=1.2, label="exact attention")
    ax.set_xscale("log")
    if min(errors, default=1.0) > 0:
        style.log_limits(ax, [*errors, found.target])
    ax.set_xlabel("multiplications / those of exact attention")
    ax.set_ylabel(found.metric)


def _caption(found: Recommendation, few: bool) -> str:
    p, partial = percent(found.probability), "" if found.complete else "NOT FINISHED. "
    what = (
        f"every candidate that was measured: median of its draws, with a line up to the value that {p} of them keep"
        if few
        else "one point for each head"
    )
    return (
        f"{partial}{found.title}: {found.metric} against cost; {what}. A choice stands at the bound that {p} of all "
        f"draws keep, certified at {percent(found.confidence)} confidence for all heads together."
    )


def _data(decisions: Sequence[Decision]) -> pd.DataFrame:
    rows = []
    for decision in decisions:
        for point in decision.points:
            names = {"head": decision.head, "estimator": point.setting.estimator, "size": point.setting.size}
            rest = {key: value for key, value in point._asdict().items() if key != "setting"}
            rows.append(names | rest | {"chosen": point.setting == decision.setting and decision.outcome})
    return pd.DataFrame(rows)
