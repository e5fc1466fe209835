"""Error against cost, with the target and the choice: a panel for each of a few heads, one for all of many."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.formats import in_full
from favorbench.results.figures.blocks import metric_label
from favorbench.studies.recommend.candidates import PER_HEAD
from favorbench.studies.recommend.decision import EFFECTS, Decision, better_of

if TYPE_CHECKING:
    from favorbench.studies.recommend.answer import Recommendation

MAX_PANELS = 6
MAX_ERROR = 10.0  # larger errors are drawn here
FREE = 1e-3  # where an estimator without multiplications is drawn, as a share of the cost of exact attention

_DOTS: dict[str, Any] = {"linestyle": "none", "markersize": 5}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "baseline": ("trivial answers", _DOTS | {"color": "0.45", "marker": "x"}),
    "map": ("maps", _DOTS | {"color": style.COLOURS[0], "marker": "o"}),
    "method": ("methods", _DOTS | {"color": style.COLOURS[2], "marker": "s"}),
    PER_HEAD: ("settings per head", _DOTS | {"color": style.COLOURS[3], "marker": "D"}),
}
_CHOICE: dict[str, Any] = {
    "marker": "*", "markersize": 17, "color": style.COLOURS[1], "markeredgecolor": "black", "linestyle": "none",
    "zorder": 4,
}  # fmt: skip


def charts(result: "Recommendation") -> list[style.Chart]:
    """The chart; none before the first draw."""
    begun = [decision for decision in result.decisions if decision.setting is not None]
    if not begun:
        return []
    p, partial_ = in_full(result.probability), "" if result.complete else "NOT FINISHED. "
    draws, scope = (result.model.draws, "candidates") if result.model else ("draws", "heads")
    if len(begun) <= MAX_PANELS:
        panels = [
            style.Panel(f"{item.head}: {_outcome(item)}", partial(_draw_head, result, item), "error") for item in begun
        ]
        points = (
            f"Every candidate that was measured: median of its {draws}, with a line up to the value that {p} of them "
            "keep"
        )
    else:
        panels = [style.Panel(f"{len(begun)} heads of {result.title}", partial(_draw_heads, result, begun))]
        points = "One point for each head"
    text = (
        f"{partial_}{result.title}: {points}. A choice is drawn at the bound that {p} of all {draws} keep, certified "
        f"at {in_full(result.confidence)} confidence for all {scope} together. Errors above {MAX_ERROR:g} are drawn at "
        f"{MAX_ERROR:g}, and costs of 0 at {FREE:g}."
    )
    side, better = ("below", "lower") if better_of(result.metric) == "lower" else ("above", "upper")
    title = f"The cheapest estimator {side} the target: {better} left is better"
    return [style.Chart("recommend", title, text, panels, min(len(panels), 2), (5.6, 3.6), (8.4, 4.6), _data(begun))]


def _outcome(decision: Decision) -> str:
    state = {"certified": "", "nothing": "nothing; best: ", "not finished": "not certified: "}[decision.outcome]
    return state + (decision.setting.text if decision.setting else "")


def _end(decision: Decision) -> float:
    """The error at which a choice is drawn: its certified bound, or else its measured quantile."""
    return min(decision.bound if math.isfinite(decision.bound) else decision.quantile, MAX_ERROR)


def _draw_head(result: "Recommendation", decision: Decision, ax: Axes) -> None:
    """The candidates that were measured: median, and a line up to the requested quantile."""
    ax.axhline(decision.uniform, color="black", linestyle="--", linewidth=1.2, label="uniform (mean of V)")
    ends = [decision.uniform] if 0 < decision.uniform <= MAX_ERROR else []
    if result.model and result.model.bfloat16_texts:
        ends.append(result.model.bfloat16[1])
        ax.axhline(ends[-1], color="0.45", linestyle="-.", label="model in bfloat16")
    for kind, (words, look) in _KINDS.items():
        points = [point for point in decision.points if point.setting.kind == kind and point.share]
        costs = [point.share for point in points]
        medians, quantiles = ([min(getattr(p, name), MAX_ERROR) for p in points] for name in ("median", "quantile"))
        if points:
            ax.vlines(costs, medians, quantiles, color=look["color"], linewidth=1.2, alpha=0.6)
            ax.plot(costs, medians, label=words, **look)
            ends += [*medians, *quantiles]
    certified = decision.outcome == "certified"
    label = "the choice, at its certified bound" if certified else "no choice: the best, at its bound"
    look: dict[str, Any] = _CHOICE if certified else _CHOICE | {"markerfacecolor": "white"}
    ax.plot([max(decision.share, FREE)], [_end(decision)], label=label, **look)
    _frame(ax, result, ends)


def _draw_heads(result: "Recommendation", decisions: Sequence[Decision], ax: Axes) -> None:
    """One point for each head: its choice, or the best candidate."""
    groups: dict[str, list[Decision]] = {}
    for decision in decisions:
        name = decision.setting.estimator if decision.setting and decision.outcome == "certified" else ""
        groups.setdefault(name, []).append(decision)
    rest = groups.pop("", [])
    for number, (name, chosen) in enumerate(groups.items()):
        look = style.series_look(number, linestyle="none", markersize=style.scaled(7))
        _plot_heads(ax, chosen, look | {"label": style.plain(f"{name} ({len(chosen)})")})
    if rest:
        label = f"nothing certified ({len(rest)}): the best"
        _plot_heads(ax, rest, {"linestyle": "none", "marker": "x", "color": "0.35", "label": label})
    _frame(ax, result, [_end(d) for d in decisions])


def _plot_heads(ax: Axes, decisions: Sequence[Decision], look: dict[str, Any]) -> None:
    ax.plot([max(d.share, FREE) for d in decisions], [_end(d) for d in decisions], **look)


def _frame(ax: Axes, result: "Recommendation", errors: Sequence[float]) -> None:
    ax.axhline(result.target, color="black", linestyle=":", label=f"target {result.target:g}")
    ax.axvline(1.0, color="0.4", linestyle="--", linewidth=1.2, label="exact attention")
    ax.set_xscale("log")
    style.log_ticks(ax.xaxis)
    if min(errors, default=1.0) > 0:
        style.log_limits(ax, [*errors, result.target])
    unit = "CPU seconds" if result.model and result.model.by == "seconds" else "multiplications"
    label = EFFECTS[result.metric].axis if result.model else metric_label(result.metric)
    ax.set(xlabel=f"{unit} relative to exact attention", ylabel=label)


def _data(decisions: Sequence[Decision]) -> pd.DataFrame:
    rows = []
    for decision in decisions:
        for point in decision.points:
            names = {"head": decision.head, "estimator": point.setting.estimator, "size": point.setting.size}
            rest = {key: value for key, value in point._asdict().items() if key != "setting"}
            rows.append(names | rest | {"chosen": point.setting == decision.setting and decision.outcome})
    return pd.DataFrame(rows)
