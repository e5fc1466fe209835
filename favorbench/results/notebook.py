"""What a run says where Python is worked with: HTML in a notebook, Markdown in a terminal.

No colours of our own, so that it is read on a light ground and on a dark one. Names stay names: all text is escaped.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from favorbench.formats import HEADINGS, format_value, printable
from favorbench.results import head_ranking, heads, ranking
from favorbench.results.page.text import escaped
from favorbench.results.report import cell_sentences, run_sentences
from favorbench.results.results import Results
from favorbench.results.tables import Table, cell_tables, legend, rows_as_markdown, said_once, size_axis

MOST = 6  # tables of a run that are shown unasked

_QUIET = 'style="opacity:0.75"'


class Records(NamedTuple):
    """A table of texts with a title above and a note below: one row for each record."""

    title: str
    rows: Sequence[dict[str, str]]
    note: str = ""

    def _repr_html_(self) -> str:
        return html_table(self.title, self.rows, self.note)

    def __repr__(self) -> str:
        text = rows_as_markdown(self.rows) if self.rows else ""
        return printable("\n\n".join(filter(None, [self.title, text.rstrip("\n"), self.note])), but="\n")


class Several(tuple[Records, ...]):
    """Tables below one another. ``frame`` of a ranking or a table has their numbers."""

    def _repr_html_(self) -> str:
        return "".join(one._repr_html_() for one in self)

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self))


def html_table(title: str, rows: Sequence[dict[str, str]], note: str = "") -> str:
    """A table with its title and note; from the second column on to the right, as numbers are."""
    said = f"<div><p><b>{escaped(title)}</b></p>" if title else "<div>"
    if rows:
        head = "".join(f"<th>{escaped(name)}</th>" for name in rows[0])
        body = "".join(_row(list(row.values())) for row in rows)
        said += f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return said + (f"<p {_QUIET}>{escaped(note)}</p>" if note else "") + "</div>\n"


def _row(values: Sequence[str]) -> str:
    first, *rest = map(escaped, values)
    cells = "".join(f'<td style="text-align:right">{value}</td>' for value in rest)
    return f'<tr><th style="text-align:left">{first}</th>{cells}</tr>'


def html_list(sentences: Iterable[str]) -> str:
    """Sentences, one below the other."""
    items = "".join(f"<li>{escaped(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>\n" if items else ""


def of_table(table: Table, note: str = "") -> Records:
    """A table of values; * marks what is worse than uniform attention."""
    names = [HEADINGS.get(name, name) for name in table.labels]
    names += [f"{HEADINGS.get(table.axis, table.axis)} = {value}" for value in table.columns]
    rows = [
        dict(zip(
            names,
            [*map(str, labels), *(format_value(x, table.metric, table.floor) + "*" * bad
                                  for x, bad in zip(values, worse, strict=True))],
            strict=True,
        ))
        for labels, values, worse in table.rows
    ]  # fmt: skip
    return Records(table.title or table.caption, rows, note or (table.caption if table.title else ""))


def tables_of(results: Results, metric: str = "mse", stat: str = "median", alone: bool = False) -> Several:
    """As ``favorbench table``: over the heads of each input that has several, and of every cell else; alone: of every
    cell. Where nothing can be said over heads, those that are few are shown each by itself.
    """
    if alone:
        over, few = Several(), results
    else:
        over = over_heads(results, metric) if stat == "median" and heads.can_be_compared(metric) else Several()
        few = heads.without_many(results, 1 if over else heads.FEW)
    found = cell_tables(few, metric, stat) if len(few.summary) else []
    notes = said_once([f"{one.caption}. {legend(results)}" for one in found])
    return Several([*over, *(of_table(one, note) for one, note in zip(found, notes, strict=True))])


def over_heads(results: Results, metric: str = "mse") -> Several:
    """The table over the heads of each input that has several."""
    found = heads.populations(results, metric)
    notes = said_once([heads.legend(results)] * len(found))
    return Several(
        Records(heads.title(one, metric), heads.shown(one, size_axis(results)), note)
        for one, note in zip(found, notes, strict=True)
    )


def rankings_of(results: Results, metric: str, alone: bool) -> Several:
    """As ``favorbench rank``: over many heads, and of every cell of few; alone: of every cell."""
    over = [] if alone else head_ranking.rankings_over_heads(results, metric)
    cells = results if alone else heads.without_many(results)
    found = [(f"over {one.title}", head_ranking.shown(one), head_ranking.legend(one)) for one in over]
    if len(cells.summary):
        each = ranking.rankings(cells, metric)
        found += [(one.title, ranking.shown(one, metric), ranking.legend(one)) for one in each]
    notes = said_once([note.replace("`", "") for *_, note in found])
    return Several(
        Records(f"Ranking, {title}", rows, note) for (title, rows, _), note in zip(found, notes, strict=True)
    )


def of_run(results: Results) -> str:
    """The sentences and tables of a run, as its sweep prints them."""
    tables, few = tables_of(results), heads.without_many(results)
    more = f"<p {_QUIET}>{len(tables) - MOST} more tables: .table()</p>\n" if len(tables) > MOST else ""
    said = [*run_sentences(results), *cell_sentences(few)]
    where = (
        f"<p {_QUIET}>{escaped(repr(results))}; .trials and .summary are DataFrames; .table() .ranking() .plot()</p>"
    )
    return Several(tables[:MOST])._repr_html_() + more + html_list(said) + where
