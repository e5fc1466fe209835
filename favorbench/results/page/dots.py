"""Many heads at a glance: a dot for each, a row of them for each estimator."""

import pandas as pd

from favorbench.formats import shortened
from favorbench.results.heads import number, quartiles
from favorbench.results.page import svg
from favorbench.results.page.figures import LEAST, MOST
from favorbench.results.page.looks import Looks, names
from favorbench.results.page.text import escaped
from favorbench.results.summary import at_largest

NAMES, ROW = 270, 17  # room for names beside dots, and the height of each row


def each_head(rows: pd.DataFrame, looks: Looks, title: str) -> str:
    """A row of dots for each estimator at its largest size, a dot for each head; a line: quartiles, a bar: the median.

    rows: of ``on_each_head``, of one population.
    """
    largest = at_largest(rows)
    named = largest.assign(name=names(largest))
    order = named.groupby("name")["ratio"].median().sort_values().index
    axis = svg.log_axis("mse / that of uniform", [*named["ratio"], 1.0], LEAST, MOST)
    assert axis  # 1 is on it
    plot = svg.Plot(axis, None, (760, ROW * len(order) + 66), NAMES)
    one = plot.across(1.0)
    plot.add(plot.line(one, plot.top, one, plot.bottom, "one"))
    for place, name in enumerate(order):
        plot.add(*_dots(plot, named[named["name"] == name], str(name), plot.top + ROW * (place + 0.75), looks))
    return plot.svg(f"{title}: a dot for each head, of {len(order)} estimators at their largest size")


def _dots(plot: svg.Plot, heads: pd.DataFrame, name: str, y: float, looks: Looks) -> list[str]:
    number_of, look = looks.numbers[name], looks.of[name]
    parts = [f'<g class="{look}" data-e="{number_of}">', plot.text(NAMES - 8, y + 4, shortened(name, 40), "end")]
    low, middle, high = quartiles(heads["ratio"].to_numpy())
    parts.append(plot.line(plot.across(low), y, plot.across(high), y, "q"))
    parts.append(f'<g transform="translate(0 {svg.number(y)})">')
    for head, ratio in zip(heads["head"], heads["ratio"], strict=True):
        words = escaped(f"{head}: {number(ratio)}")
        parts.append(f"<circle cx={svg.number(plot.across(ratio))} r=2.5><title>{words}</title></circle>")
    parts.append("</g>")
    x = plot.across(middle)
    return [*parts, plot.line(x, y - 6, x, y + 6, "q"), "</g>"]
