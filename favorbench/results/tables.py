"""Summaries as tables: what to show, not how it looks on a terminal."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, ESTIMATOR, LABELS, describe_cell
from favorbench.errors import ScenarioError
from favorbench.formats import ALIASES, HEADINGS, format_value, printable
from favorbench.metrics import METRICS
from favorbench.registry import nearest
from favorbench.results.results import Results
from favorbench.results.summary import STATS, by_cell, is_oracle

SIZES = ("num_projections", "num_features", "budget")

#: Relative to |exact|, what errors below it are: rounding, and another number on every machine.
ROUNDING = 1e-13


class Table(NamedTuple):
    """A pivoted table: label columns, then one column for each value of the last axis."""

    title: str
    labels: tuple[str, ...]
    axis: str
    columns: tuple[object, ...]
    rows: list[tuple[tuple[object, ...], list[float], list[bool]]]  # labels, values, worse than uniform
    caption: str
    floor: float  # below it values are rounding
    metric: str = "mse"

    def _repr_html_(self) -> str:
        from favorbench.results.notebook import of_table

        return of_table(self)._repr_html_()

    def __repr__(self) -> str:
        title = printable(self.title or self.caption)
        return f"{title}\n\n{printable(markdown(self, self.metric), but=chr(10))}".rstrip("\n")


def parse_by(text: str) -> list[str]:
    """Axes from "map,sampler,R". Raises ScenarioError for one that does not exist."""
    axes = [ALIASES.get(part.strip(), part.strip()) for part in text.split(",")]
    for axis in axes:
        if axis not in LABELS:
            allowed = [HEADINGS.get(name, name) for name in LABELS]
            raise ScenarioError(f"`by`: unknown axis {axis!r}{nearest(axis, allowed)}; allowed: {', '.join(allowed)}")
    return list(dict.fromkeys(axes))


def long_table(results: Results, by: Sequence[str], metric: str, stat: str) -> pd.DataFrame:
    """One row for each combination of ``by``: the statistic of the metric, n, and whether it is worse than uniform.

    That is, than the same statistic of uniform attention over the same cells.
    """
    values = _statistic(results.trials, by, metric, stat)
    table = pd.DataFrame({f"{metric}_{stat}": values, "n": _grouped(results.trials, by)["draw"].nunique()})
    table = table.reset_index()
    return table.assign(worse=_worse(results.trials, table, by, metric, stat))


def _grouped(trials: pd.DataFrame, by: Sequence[str]) -> Any:
    return trials.groupby(list(by), sort=False, dropna=False)


def _statistic(trials: pd.DataFrame, by: Sequence[str], metric: str, stat: str) -> pd.Series:
    with np.errstate(all="ignore"):  # of infinite errors
        return STATS[stat](_grouped(trials, by)[metric])


def _worse(trials: pd.DataFrame, table: pd.DataFrame, by: Sequence[str], metric: str, stat: str) -> pd.Series | bool:
    """Where the values of a table are worse than uniform attention's; nowhere for spreads, counts and other metrics."""
    if stat not in ("median", "mean") or not METRICS[metric].error:
        return False
    uniform, cells = trials[trials["map"] == "uniform"], [axis for axis in by if axis not in ESTIMATOR]
    column = f"{metric}_{stat}"
    if cells:
        trivial = _statistic(uniform, cells, metric, stat).rename("trivial").reset_index()
        theirs = table[cells].merge(trivial, how="left", on=cells)["trivial"]
    else:
        theirs = pd.Series(float(STATS[stat](uniform[metric])), index=table.index)
    ours, theirs = table[column].to_numpy(), theirs.to_numpy()
    if METRICS[metric].better == "higher":
        return pd.Series(ours < theirs, index=table.index)
    floor = rounding_level(trials, metric)
    return pd.Series(np.maximum(ours, floor) > np.maximum(theirs, floor), index=table.index)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain data for JSON: full precision, None where a number is not finite."""
    plain = frame.astype(object).to_dict(orient="records")
    return [
        {str(k): None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in plain
    ]


def varying(trials: pd.DataFrame, axes: Sequence[str] = CELL) -> list[str]:
    """Those of the axes that have more than one value."""
    return [axis for axis in axes if trials[axis].nunique(dropna=False) > 1]


def pooled_over(results: Results, by: Sequence[str]) -> list[str]:
    """The axes that vary and that ``by`` leaves out: the statistic mixes their values."""
    trials = results.trials
    sizes = () if set(SIZES) & set(by) else ("num_projections",)
    estimator = [axis for axis in ("map", "sampler", *sizes) if axis not in by]
    return [axis for axis in varying(trials) if axis not in by] + [a for a in estimator if trials[a].nunique() > 1]


def pivoted(results: Results, by: Sequence[str], metric: str = "mse", stat: str = "median") -> Table:
    """The last axis of ``by`` as columns. What has no R (most baselines) shows its value in every column of sizes."""
    *labels, axis = by
    if axis in SIZES:
        results = results._replace(trials=_sized(results, axis))
    long = long_table(results, by, metric, stat)
    columns = sorted(dict.fromkeys(long[axis].dropna()), key=lambda value: (isinstance(value, str), value))
    rows = []
    for key, group in _grouped(long, labels) if labels else [((), long)]:
        cells = {
            None if pd.isna(value) else value: (float(x), bool(worse))
            for value, x, worse in zip(group[axis], group[f"{metric}_{stat}"], group["worse"], strict=True)
        }
        found = [cells.get(value, cells.get(None, (math.nan, False))) for value in columns]
        names = tuple("-" if pd.isna(label) else label for label in key)
        rows.append((names, [x for x, _ in found], [worse for _, worse in found]))
    order = {label: {value: i for i, value in enumerate(dict.fromkeys(long[label].fillna("-")))} for label in labels}
    rows.sort(key=lambda row: [order[label][value] for label, value in zip(labels, row[0], strict=True)])
    pooled = pooled_over(results, by)
    caption = f"{stat} {metric} of {draws_in_words(long['n'])}"
    caption += f", pooled over {', '.join(HEADINGS.get(a, a) for a in pooled)}" if pooled else ""
    return Table("", tuple(labels), axis, tuple(columns), rows, caption, rounding_level(results.trials, metric), metric)


def _sized(results: Results, axis: str) -> pd.DataFrame:
    """The trials with an axis of sizes that is missing wherever R is: these stand in no column of their own."""
    trials = results.trials
    return trials.assign(**{axis: trials[axis].astype("Int64").where(trials["num_projections"].notna())})


def rounding_level(trials: pd.DataFrame, metric: str) -> float:
    """What a metric of float64 arithmetic cannot tell from 0, of the largest exact answer; 0 where all of it can.

    Sums over L keys are off by a small multiple of eps sqrt(L) of |exact|: ROUNDING allows for the longest.
    """
    if not METRICS[metric].error or not METRICS[metric].log:
        return 0.0
    power, measured = METRICS[metric].power, trials[trials["relative_error"] > 0]
    exact = np.sqrt((measured["mse"] / measured["relative_error"] ** 2).max()) if power and len(measured) else 1.0
    return float(ROUNDING * exact) ** max(power, 1)


def cell_tables(results: Results, metric: str = "mse", stat: str = "median") -> list[Table]:
    """One table for each cell: map x sampler in rows, R in columns."""
    axis, tables = size_axis(results), []
    for trials in by_cell(results.trials).values():
        table = pivoted(results._replace(trials=trials), ["map", "sampler", axis], metric, stat)
        tables.append(table._replace(title=f"{metric}, {describe_cell(trials.iloc[0])}"))
    return tables


def size_axis(results: Results) -> str:
    """What tables and figures count by: R, or the budget where that is features or cost."""
    return "num_projections" if results.scenario.budget == "projections" else "budget"


def at_size(budget: str, size: object) -> str:
    """ "R = 64", "64 features" or "the cost of 64 features": what a budget of so much is, in a sentence."""
    words = {"projections": "R = {}", "features": "{} features", "cost": "the cost of {} features"}
    return words[budget].format(size)


def size_label(results: Results) -> str:
    """What an axis of sizes shows."""
    return {"projections": "R", "features": "budget: number of features", "cost": "budget: cost of so many features"}[
        results.scenario.budget
    ]


def draws_in_words(n: pd.Series) -> str:
    """ "15 draws", "1 draw" or "14 to 15 draws"."""
    low, high = int(n.min()), int(n.max())
    return f"{high} draw{'' if high == 1 else 's'}" if low == high else f"{low} to {high} draws"


def markdown(table: Table, metric: str) -> str:
    """A GitHub table; * marks what is worse than uniform attention."""
    head = [HEADINGS.get(name, name) for name in table.labels]
    head += [f"{HEADINGS.get(table.axis, table.axis)} = {value}" for value in table.columns]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(table.labels) + " ---: |" * len(table.columns)]
    for labels, values, worse in table.rows:
        shown = [format_value(x, metric, table.floor) + ("*" if w else "") for x, w in zip(values, worse, strict=True)]
        names = [str(label).replace("|", "\\|") for label in labels]
        lines.append("| " + " | ".join([*names, *shown]) + " |")
    return "\n".join(lines) + "\n"


def rows_as_markdown(rows: Sequence[dict[str, str]]) -> str:
    """A GitHub table of texts, one row for each record."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    lines += ["| " + " | ".join(text.replace("|", "\\|") for text in row.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def latex(table: Table, metric: str) -> str:
    """A booktabs table; an asterisk marks what is worse than uniform attention."""
    width = len(table.labels) + len(table.columns)
    head = [_escaped(HEADINGS.get(name, name)) for name in table.labels]
    head += [f"${_escaped(HEADINGS.get(table.axis, table.axis))} = {_escaped(value)}$" for value in table.columns]
    lines = [
        "% needs \\usepackage{booktabs}; " + f"{table.caption}; * median worse than uniform attention",
        "\\begin{tabular}{" + "l" * len(table.labels) + "r" * len(table.columns) + "}",
        "\\toprule",
        *([f"\\multicolumn{{{width}}}{{l}}{{{_escaped(table.title)}}} \\\\", "\\midrule"] if table.title else []),
        " & ".join(head) + " \\\\",
        "\\midrule",
    ]
    for labels, values, worse in table.rows:
        shown = []
        for x, w in zip(values, worse, strict=True):
            mantissa, _, exponent = format_value(x, metric, table.floor).partition("e")
            body = mantissa if not exponent else f"{mantissa} \\times 10^{{{exponent}}}"
            shown.append(f"${body}$" + ("*" if w else ""))
        lines.append(" & ".join([*(_escaped(label) for label in labels), *shown]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def rows_as_latex(rows: Sequence[dict[str, str]], title: str) -> str:
    """A booktabs table of texts, one row for each record."""
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{tabular}{" + "l" * len(rows[0]) + "}",
        "\\toprule",
        f"\\multicolumn{{{len(rows[0])}}}{{l}}{{{_escaped(title)}}} \\\\",
        "\\midrule",
        " & ".join(map(_escaped, rows[0])) + " \\\\",
        "\\midrule",
        *(" & ".join(map(_escaped, row.values())) + " \\\\" for row in rows),
    ]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _escaped(text: object) -> str:
    """Text as LaTeX takes it."""
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in str(text))


def said_once(notes: Sequence[str]) -> list[str]:
    """Notes below several tables: nothing where the next one says the same."""
    return ["" if note in notes[i + 1 : i + 2] else note for i, note in enumerate(notes)]


def legend(results: Results) -> str:
    """What R means, what the mark means, which baseline could not be had, and what was left of the inputs."""
    scenario, trials = results.scenario, results.trials
    mean = "the mean of V up to the query" if scenario.causal else "the mean of V"
    text = f"{what_r_means(results)} * worse than uniform attention ({mean})."
    if "best-rank" in scenario.baselines and not (trials["map"] == "best-rank").any():
        text += " best-rank: not computed, it needs every query row and an attention matrix of at most 2048 x 2048."
    return " ".join(filter(None, [text, what_oracles_are(results), *shortened_inputs(results)]))


def _exact_costs(results: Results) -> str:
    """n l (d + d_v) multiplications, of a map of R features (n + l) R (d + d_v); causal, it depends on the program."""
    shapes = results.trials[["query_len", "seq_len"]].drop_duplicates()
    if len(shapes) > 1 or results.scenario.causal:
        return ""
    n, length = shapes.iloc[0]
    return f"; exact attention would need a budget of {n * length / (n + length):.0f}"


def what_oracles_are(results: Results) -> str:
    """Which of the estimators are bounds, where those beside them pay for what they do."""
    return bounds_in_words(results) if results.scenario.budget == "cost" else ""


def bounds_in_words(results: Results) -> str:
    """Which of the estimators are bounds, and why."""
    names = [name for name in results.trials["map"].unique() if is_oracle(name)]
    if not names:
        return ""
    subject = f"{names[0]} looks" if len(names) == 1 else f"{', '.join(names)} look"
    return f"{subject} at every pair of a query and a key: a bound, at any cost."


def shortened_inputs(results: Results) -> list[str]:
    """A sentence for each input of which a part of the tokens was measured."""
    files: Any = results.manifest.get("input_files", [])
    return [f"{file['input']}: {note}." for file in files for note in file["notes"] if note.startswith("the first ")]


def what_r_means(results: Results) -> str:
    """How many features each map has for R projections, where that is not R; those measured only."""
    if results.scenario.budget == "features":
        return "Compared at equal num_features: the budget, but for maps and baselines with a number of their own."
    if results.scenario.budget == "cost":
        largest = results.trials["budget"].max()
        return (
            f"Compared at equal cost: a budget of {largest} are the multiplications of linear attention with {largest} "
            f"features, and each estimator is as large as they allow{_exact_costs(results)}."
        )
    measured = list(results.trials.loc[results.trials["kind"] == "map", "map"].unique())
    counts: Any = results.manifest["num_features"]
    by_count: dict[str, list[str]] = {}
    for name in measured:
        by_count.setdefault(counts[name], []).append(str(name))
    others = [f"{', '.join(names)}: {count}" for count, names in by_count.items() if count != "R"]
    sized = (results.trials["kind"] == "method").any()
    if not measured:
        return "R counts the centroids, keys or landmarks of methods."
    methods = "; of methods it counts centroids, keys or landmarks" if sized else ""
    features = f"; num_features of {'; '.join(others)}" if others else " and features"
    return f"R counts projections{features}{methods}."
