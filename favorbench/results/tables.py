"""Summaries as tables: what to show, not how it looks on a terminal."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.engine.scenario import Scenario
from favorbench.engine.trial import LABELS
from favorbench.errors import ScenarioError
from favorbench.formats import ALIASES, HEADINGS, format_value
from favorbench.registry import nearest
from favorbench.results.results import Results
from favorbench.results.summary import CELL, STATS


class Table(NamedTuple):
    """A pivoted table: label columns, then one column for each value of the last axis."""

    title: str
    labels: tuple[str, ...]
    axis: str
    columns: tuple[object, ...]
    rows: list[tuple[tuple[object, ...], list[float], list[bool]]]  # labels, values, worse than uniform
    caption: str


def parse_by(text: str) -> list[str]:
    """Axes from "map,sampler,R". Raises ScenarioError for one that does not exist."""
    axes = [ALIASES.get(part.strip(), part.strip()) for part in text.split(",")]
    for axis in axes:
        if axis not in LABELS:
            allowed = [HEADINGS.get(name, name) for name in LABELS]
            raise ScenarioError(f"--by: unknown axis {axis!r}{nearest(axis, allowed)}; allowed: {', '.join(allowed)}")
    return list(dict.fromkeys(axes))


def long_table(results: Results, by: Sequence[str], metric: str, stat: str) -> pd.DataFrame:
    """One row for each combination of ``by``: the statistic of the metric, n, and whether it is worse than uniform."""
    groups = results.trials.groupby(list(by), sort=False, dropna=False)
    with np.errstate(all="ignore"):
        values, worse = groups[metric].agg(STATS[stat]), groups["skill"].median() < 0
    judged = stat in ("median", "mean")  # a spread or a count is not better or worse than uniform attention
    table = pd.DataFrame({f"{metric}_{stat}": values, "n": groups["draw"].nunique(), "worse": worse & judged})
    return table.reset_index()


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
    sizes = () if {"num_projections", "num_features"} & set(by) else ("num_projections",)
    estimator = [axis for axis in ("map", "sampler", *sizes) if axis not in by]
    return [axis for axis in varying(trials) if axis not in by] + [a for a in estimator if trials[a].nunique() > 1]


def pivoted(results: Results, by: Sequence[str], metric: str = "mse", stat: str = "median") -> Table:
    """The last axis of ``by`` as columns. A row without R (a baseline) shows its value in every column."""
    *labels, axis = by
    size_axis = axis in ("num_projections", "num_features")
    if size_axis:  # what has no R stands in no column of its own
        sizes = asked_for(results.scenario, results.trials) if axis == "num_features" else results.trials[axis]
        trials = results.trials.assign(**{axis: sizes.where(results.trials["num_projections"] > 0, 0)})
        results = results._replace(trials=trials)
    long = long_table(results, by, metric, stat)
    columns = [value for value in dict.fromkeys(long[axis]) if not (size_axis and value == 0)]
    columns.sort(key=lambda value: (isinstance(value, str), value))
    rows = []
    for key, group in long.groupby(labels, sort=False, dropna=False) if labels else [((), long)]:
        cells = {
            value: (x, bool(w))
            for value, x, w in zip(group[axis], group[f"{metric}_{stat}"], group["worse"], strict=True)
        }
        everywhere = cells.get(0) if size_axis else None
        found = [cells.get(value, everywhere) or (math.nan, False) for value in columns]
        rows.append((tuple(key), [x for x, _ in found], [w for _, w in found]))
    order = {label: {value: i for i, value in enumerate(dict.fromkeys(long[label]))} for label in labels}
    rows.sort(key=lambda row: [order[label][value] for label, value in zip(labels, row[0], strict=True)])
    pooled = pooled_over(results, by)
    caption = f"{stat} {metric} of {_counts(long['n'])} draws"
    caption += f", pooled over {', '.join(HEADINGS.get(a, a) for a in pooled)}" if pooled else ""
    return Table("", tuple(labels), axis, tuple(columns), rows, caption)


def asked_for(scenario: Scenario, rows_of_run: pd.DataFrame) -> pd.Series:
    """The num_features that a budget of features asked for: some maps have one or two more, exact ones."""
    features = rows_of_run["num_features"]
    if scenario.budget != "features":
        return features
    found = features.copy()
    for head_dim, rows in features.groupby(rows_of_run["head_dim"]):
        sizes = np.array(scenario.sizes(int(str(head_dim))))
        found[rows.index] = sizes[np.argmin(np.abs(rows.to_numpy()[:, None] - sizes), axis=1)]
    return found


def cell_tables(results: Results, metric: str = "mse", stat: str = "median") -> list[Table]:
    """One table for each cell: map x sampler in rows, R in columns."""
    axis, tables = size_axis(results), []
    for _, trials in results.trials.groupby(list(CELL), sort=False, dropna=False):
        table = pivoted(results._replace(trials=trials), ["map", "sampler", axis], metric, stat)
        tables.append(table._replace(title=f"{metric}, {describe_cell(trials.iloc[0])}"))
    return tables


def describe_cell(row: pd.Series) -> str:
    """ "gaussian, scale 1, L = 1024, d = 16" or "minilm L0H1, L = 512, d = 32"."""
    head = "" if row["head"] == "-" else f" {row['head']}"
    length = (
        f"L = {row['seq_len']}" if row["query_len"] == row["seq_len"] else f"L = {row['query_len']} x {row['seq_len']}"
    )
    length += "" if row["query_rows"] == row["query_len"] else f" ({row['query_rows']} query rows measured)"
    value_scale = "" if row["value_scale"] == 1 else f", value scale {row['value_scale']:g}"
    dtype = "" if row["dtype"] == "float64" else f", {row['dtype']}"
    causal = ", causal" if row["causal"] == "yes" else ""
    return f"{row['input']}{head}, scale {row['scale']:g}{value_scale}, {length}, d = {row['head_dim']}{causal}{dtype}"


def size_axis(results: Results) -> str:
    """What tables and figures count by: R, or features where that is the budget."""
    return "num_features" if results.scenario.budget == "features" else "num_projections"


def _counts(n: pd.Series) -> str:
    return f"{n.min()}" if n.min() == n.max() else f"{n.min()} to {n.max()}"


def markdown(table: Table, metric: str) -> str:
    """A GitHub table; * marks what is worse than uniform attention."""
    head = [HEADINGS.get(name, name) for name in table.labels]
    head += [f"{HEADINGS.get(table.axis, table.axis)} = {value}" for value in table.columns]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(table.labels) + " ---: |" * len(table.columns)]
    for labels, values, worse in table.rows:
        shown = [format_value(x, metric) + ("*" if w else "") for x, w in zip(values, worse, strict=True)]
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
            mantissa, _, exponent = format_value(x, metric).partition("e")
            body = mantissa if not exponent else f"{mantissa} \\times 10^{{{exponent}}}"
            shown.append(f"${body}$" + ("*" if w else ""))
        lines.append(" & ".join([*(_escaped(label) for label in labels), *shown]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _escaped(text: object) -> str:
    """Text as LaTeX takes it."""
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in str(text))


def legend(results: Results) -> str:
    """What R means, what the mark means, and which baseline could not be had."""
    scenario, trials = results.scenario, results.trials
    mean = "the mean of V up to the query" if scenario.causal else "the mean of V"
    text = f"{what_r_means(results)} * median worse than uniform attention ({mean})."
    if "best-rank" in scenario.baselines and "best-rank" not in set(trials["map"]):
        text += " best-rank: not computed, it needs every query row and an attention matrix of at most 2048 x 2048."
    return text


def what_r_means(results: Results) -> str:
    """How many features each map has for R projections, where that is not R; those measured only."""
    if results.scenario.budget == "features":
        return "Compared at equal num_features, but for maps and baselines with a number of their own."
    maps = results.trials[results.trials["kind"] == "map"]
    by_count: dict[str, list[str]] = {}
    for name, rows in maps.groupby("map"):
        by_count.setdefault(_features_for(rows), []).append(str(name))
    others = [f"{', '.join(names)}: {count}" for count, names in by_count.items() if count != "R"]
    return "R counts projections" + (f"; num_features of {'; '.join(others)}." if others else " and features.")


def _features_for(rows: pd.DataFrame) -> str:
    """num_features of one map as a function of R: "2R", "3R + 1", "fixed"."""
    if (rows["num_projections"] == 0).all():
        return "fixed"
    per = int((rows["num_features"] // rows["num_projections"]).min())
    more = sorted(set(rows["num_features"] - per * rows["num_projections"]))
    return f"{per if per > 1 else ''}R" + (f" + {', '.join(map(str, more))}" if more != [0] else "")
