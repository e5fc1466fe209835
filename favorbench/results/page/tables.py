"""The tables of a page: rows with a header each, so that a reader of screens, a sort and a filter can use them.

End tags that HTML lets out are left out: a page of many heads is a third smaller.
"""

from collections.abc import Mapping, Sequence

from favorbench.formats import HEADINGS, format_value
from favorbench.results.heads import Population, shown, title
from favorbench.results.page.looks import Looks
from favorbench.results.page.text import escaped
from favorbench.results.ranking import Ranked, Ranking
from favorbench.results.summary import estimator_name, is_oracle
from favorbench.results.tables import Table
from favorbench.statistics import fewest_draws, interval_name


def table(caption: str, head: Sequence[str], rows: Sequence[str], first_numbers: int) -> str:
    """A table in a frame that scrolls by itself; from column ``first_numbers`` on there are numbers."""
    columns = "".join(
        f"<th scope=col{'' if i < first_numbers else ' class=n'}>{escaped(name)}" for i, name in enumerate(head)
    )
    label = f'tabindex=0 role=region aria-label="{escaped(caption)}"'
    said = f"<caption>{escaped(caption)}</caption>"
    return f"<div class=scroll {label}><table>{said}<thead><tr>{columns}<tbody>{''.join(rows)}</table></div>\n"


def of_cell(found: Table, ranking: Ranking, looks: Looks) -> str:
    """Ranking and table in one, best first: the median at each size, then interval, letters and verdict.

    A class says what is worse than uniform attention, and so does the mark. Letters and verdicts are left out where so
    few draws could tell no two apart.
    """
    heading = HEADINGS.get(found.axis, found.axis)
    head = ["map or method", "sampler", *(f"{heading} = {size}" for size in found.columns)]
    judged = ranking.draws >= min(ranking.draws_needed, fewest_draws(len(ranking.rows) - 1))
    head += [interval_name(ranking.draws), *(["groups", "against uniform"] if judged else []), "features"]
    values = {labels: (row, worse) for labels, row, worse in found.rows}
    rows = [
        _row(
            one,
            [groups, one.versus_uniform] if judged else [],
            *values[one.map, one.sampler or "-"],
            found.floor,
            looks,
        )
        for one, groups in zip(ranking.rows, ranking.group_names, strict=True)
    ]
    return table(f"{found.title}: {found.caption}", head, rows, 2)


def _row(
    one: Ranked, judged: Sequence[str], values: Sequence[float], worse: Sequence[bool], floor: float, looks: Looks
) -> str:
    cells = [
        f"<td class=w>{format_value(x, 'mse', floor)}*" if bad else f"<td>{format_value(x, 'mse', floor)}"
        for x, bad in zip(values, worse, strict=True)
    ]
    interval = " to ".join(format_value(x, "mse", floor) for x in (one.low, one.high))
    rest = (interval, *judged, one.num_features)
    return (
        f"{_start(one.map, one.name, looks)}{escaped(one.map)}<td class=t>{escaped(one.sampler or '-')}"
        f"{''.join(cells)}{''.join(f'<td>{escaped(text)}' for text in rest)}"
    )


def over_heads(population: Population, axis: str, looks: Looks) -> str:
    """The tables over heads, best first: at the largest size, with what has no size; smaller ones closed."""
    rows = population.rows
    sizes = sorted(set(rows.loc[rows["num_projections"].notna(), axis].dropna()), reverse=True) or [None]
    found = []
    for size in sizes:
        sized = rows["num_projections"].notna()
        chosen = rows[sized & (rows[axis] == size) | ~sized] if size == sizes[0] else rows[sized & (rows[axis] == size)]
        at = "" if size is None else f", {HEADINGS.get(axis, axis)} = {size}"
        text = _of_size(population._replace(rows=chosen), axis, f"{title(population)}{at}", looks)
        found.append(text if size == sizes[0] else f"<details><summary>{escaped(at[2:])}</summary>{text}</details>\n")
    return "".join(found)


def _of_size(population: Population, axis: str, caption: str, looks: Looks) -> str:
    """One table over heads, its rows as ``favorbench table --over heads`` has them."""
    order = population.rows.sort_values("ratio_median", kind="stable")
    texts = [shown(population._replace(rows=order.iloc[[i]]), axis)[0] for i in range(len(order))]
    rows = []
    for (_, estimator), record in zip(order.iterrows(), texts, strict=True):
        name, (marked, *values) = estimator_name(estimator), record.values()
        start = _start(looks.labels[name][0], name, looks)
        cells = "".join(f"<td>{escaped(value)}" for value in values)
        rows.append(f"{start}{escaped(marked)}{cells}")
    return table(caption, list(texts[0]), rows, 1)


def _start(one: str, name: str, looks: Looks) -> str:
    """The start of a row: its estimator, and whether that is a bound."""
    return f"<tr data-e={looks.numbers[name]}{' class=bound' if is_oracle(one) else ''}><th scope=row>"


def records(caption: str, values: Mapping[str, object]) -> str:
    """Names and values, a row for each."""
    rows = [f"<tr><th scope=row>{escaped(name)}<td class=t>{escaped(value)}" for name, value in values.items()]
    return table(caption, ["key", "value"], rows, 2)
