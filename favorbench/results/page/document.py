"""The page as a whole: what is in it, what there is no room for, and the policy that nothing is loaded."""

import base64
import gzip
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

import pandas as pd

from favorbench.engine.columns import CELL, ESTIMATOR
from favorbench.engine.provenance import VERSION
from favorbench.errors import ScenarioError, StoreError
from favorbench.files import clear_errors, read_regular, write_text
from favorbench.registry import nearest, split_list
from favorbench.results import heads, report
from favorbench.results.heads import FEW, POPULATION, Population
from favorbench.results.page import parts
from favorbench.results.page.looks import Looks
from favorbench.results.page.parts import Section
from favorbench.results.page.text import embedded, escaped
from favorbench.results.ranking import rankings
from favorbench.results.results import Results
from favorbench.results.tables import cell_tables, rounding_level

LIMIT = 1_000_000  # bytes of a page: what mail and chat take without a thought
PLAIN_DATA, PACKED_DATA = 200_000, 300_000  # bytes of CSV that a page has in it, as it is or compressed

#: What the data have of each estimator of each cell.
COLUMNS = (
    *CELL, *ESTIMATOR, "n", "mse_median", "mse_q10", "mse_q90", "mse_mean", "mse_low", "mse_high", "versus_uniform",
)  # fmt: skip

_GENERATOR = '<meta name="generator" content="favorbench '


class Page(NamedTuple):
    """A page, and the CSV to be beside it where that is too large to be inside."""

    html: str
    beside: str | None


class Left(NamedTuple):
    """How many of so many cells and populations have no table in a page, and how many no figure."""

    of: int
    tables: int
    figures: int


def page(results: Results, name: str = "report") -> Page:
    """A run as HTML, below LIMIT; name: of the CSV, without its ending."""
    each = heads.on_each_head(results)
    looks, populations, axes = Looks(each), heads.populations(results), parts.axes_of(results)
    cells = [parts.names_of(one.rows.iloc[0], [a for a in axes if a != "head"]) for one in populations]
    cells += [parts.names_of(cell, axes) for _, cell in results.summary.drop_duplicates(list(CELL)).iterrows()]
    of_population = dict(list(each.groupby(list(POPULATION), sort=False, dropna=False)))
    together = [
        parts.of_population(results, one, of_population[one.cell], looks, number)
        for number, one in enumerate(populations)
    ]
    alone, said = _cells(results, each, looks, populations)
    what = f"{len(results.summary)} rows, one for each cell and estimator at each size, with six digits"
    data, beside = packed(data_csv(results), f"{name}.csv", what)
    values = {
        "title": escaped(results.scenario.name),
        "lead": _lead(results),
        "filters": parts.filters(looks.labels.values(), parts.choices_of(results)),
        "legends": parts.how_to_read(results),
        "data": data,
        "manifest": parts.manifest(results),
        "names": embedded(parts.names_for_script(looks.labels.values(), cells)),
    }
    sentences = parts.listed(report.run_sentences(results)) + said
    return Page(fitted(values, sentences, [*together, *alone], _OTHERS), beside)


_OTHERS = "favorbench report RUN --heads H has a page of some heads."


def _cells(
    results: Results, each: pd.DataFrame, looks: Looks, populations: Sequence[Population]
) -> tuple[list[Section], str]:
    """A section for each cell, numbered after the populations; and what is said of those of one head."""
    heads_of = {one.cell: one.heads for one in populations}
    of_cell = dict(list(each.groupby(list(CELL), sort=False, dropna=False)))
    found, said = [], []
    inputs = zip(cell_tables(results), rankings(results), report.cell_sentences(results), strict=True)
    for number, (table, ranking, sentence) in enumerate(inputs, start=len(populations)):
        rows, beside = of_cell[tuple(ranking.cell)], heads_of.get(tuple(ranking.cell[list(POPULATION)]))
        if beside is not None:
            drawn = rows if beside <= FEW else None
            found.append(parts.of_one_of_many(results, table, ranking, drawn, looks, number, sentence))
        else:
            found.append(parts.of_cell(results, table, ranking, rows, looks, number))
            said.append(f"<li data-c={number}>{escaped(sentence)}")
    return found, f"<ul>{''.join(said)}</ul>" if said else ""


def fitted(values: Mapping[str, str], sentences: str, sections: Sequence[Section], others: str = "") -> str:
    """The template with as much as there is room for: tables, then figures, then what is closed, tables first.

    others: where else one finds what is left out, besides the data.
    """
    files = {"style": _file("style.css"), "script": _file("script.js")}
    values = {**values, **files, "version": escaped(VERSION), "policy": _policy()}
    template = Template(_file("template.html"))
    empty = template.substitute(values, sentences=sentences, views="")
    room = (
        LIMIT - len(empty.encode()) - len(_left_out(Left(len(sections), len(sections), len(sections)), others).encode())
    )
    open_ones, closed = ([one for one in sections if one.closed is state] for state in (False, True))
    tabled, room = _prefix([one.start + one.body + one.end for one in open_ones], room)
    drawn, room = _prefix([one.figures for one in open_ones[:tabled]], room)
    listed, room = _prefix([one.start + one.body + one.end for one in closed], room)
    more, room = _prefix([one.figures for one in closed[:listed]], room)
    shown = [one if i < drawn else one._replace(figures="") for i, one in enumerate(open_ones[:tabled])]
    shown += [one if i < more else one._replace(figures="") for i, one in enumerate(closed[:listed])]
    views = "".join(one.start + one.body + one.figures + one.end for one in shown)
    without = sum(bool(one.figures) for one in [*open_ones[drawn:], *closed[more:]])
    left = Left(len(sections), len(sections) - tabled - listed, without)
    return template.substitute(values, sentences=sentences + _left_out(left, others), views=views)


def _prefix(texts: Sequence[str], room: int) -> tuple[int, int]:
    """How many of the texts there is room for, from the first on, and how much room there is then."""
    sizes = [len(text.encode()) for text in texts]
    count = sum(total <= room for total in itertools.accumulate(sizes))
    return count, room - sum(sizes[:count])


def _left_out(left: Left, others: str) -> str:
    """What there was no room for, and where it is."""
    counts = (("tables", left.tables), ("figures", left.figures))
    found = [f"the {what} of {count} of {left.of} parts" for what, count in counts if count]
    if not found:
        return ""
    return (
        f"<p class=partial>Left out, for the page to stay below {LIMIT // 1_000_000} MB: {' and '.join(found)}. "
        f"The numbers are in the CSV (below). {escaped(others)}</p>"
    )


def only_heads(results: Results, names: str) -> Results:
    """The run with the heads of a list with commas, and no others. Raises ScenarioError for one that it has not."""
    there, chosen = list(dict.fromkeys(results.summary["head"])), split_list(names)
    for name in chosen:
        if name not in there:
            known = ", ".join(there[:8]) + (", ..." if len(there) > 8 else "")
            raise ScenarioError(f"`heads`: {name!r} is none of this run{nearest(name, there)}; allowed: {known}")
    trials, summary = (frame[frame["head"].isin(chosen)] for frame in (results.trials, results.summary))
    return results._replace(trials=trials.reset_index(drop=True), summary=summary.reset_index(drop=True))


def _lead(results: Results) -> str:
    """What the scenario says of itself, and how much was measured."""
    scenario, said, draws = results.scenario, results.manifest, results.trials["draw"].nunique()
    cells = len(results.summary.drop_duplicates(list(CELL)))
    facts = f"{draws} draws, {cells} cell{'' if cells == 1 else 's'}, {len(results.trials)} measurements"
    if draws < int(str(said["draws_done"])):
        facts = f"some heads only, of a run with {said['draws_done']} draws: {facts}"
    day = str(said.get("end") or said.get("start") or "")[:10]
    title = f"<p>{escaped(scenario.title)}</p>" if scenario.title else ""
    return f"{title}<p class=note>{escaped(', '.join(filter(None, [facts, f'favorbench {VERSION}', day])))}</p>"


def packed(text: str, name: str, rows: str) -> tuple[str, str | None]:
    """The link to a CSV, which is in the page if there is room, as it is or compressed; else the text comes back too.

    rows: what it has.
    """
    plain, small = text.encode(), gzip.compress(text.encode(), mtime=0)
    link = '<p><a download="{0}" href="data:{1};base64,{2}">{0}</a>: ' + escaped(rows)
    if len(plain) <= PLAIN_DATA:
        return link.format(escaped(name), "text/csv", base64.b64encode(plain).decode()) + ".</p>", None
    if len(small) <= PACKED_DATA:
        said = link.format(escaped(f"{name}.gz"), "application/gzip", base64.b64encode(small).decode())
        return f"{said}, compressed; pandas.read_csv reads it as it is.</p>", None
    return f"<p>{escaped(name)}, a file beside this page, for it is too large to be in it: {escaped(rows)}.</p>", text


def data_csv(results: Results) -> str:
    """The summary as CSV to six digits, and 0 for what is rounding."""
    floor = rounding_level(results.trials, "mse")
    data = results.summary[list(COLUMNS)].copy()
    for column in data.columns[data.columns.str.startswith("mse_")]:
        data[column] = data[column].mask(data[column].abs() < floor, 0.0)
    return data.to_csv(index=False, float_format="%.6g")


def _policy() -> str:
    """Nothing is loaded, from nowhere; only this style and this script are obeyed."""
    hashes = {kind: _hash(_file(name)) for kind, name in (("style", "style.css"), ("script", "script.js"))}
    return (
        f"default-src 'none'; style-src '{hashes['style']}'; script-src '{hashes['script']}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _file(name: str) -> str:
    return resources.files("favorbench.results.page").joinpath(name).read_text(encoding="utf-8")


def write_page(results: Results, path: Path) -> list[Path]:
    """Write the page, and where they are too large to be in it the data beside it; returns the files.

    A page that is there is replaced. Raises StoreError for a directory, and for a file that is no page of favorbench.
    """
    return write(lambda: page(results, path.stem), path, ",".join(COLUMNS))


def write(make: Callable[[], Page], path: Path, header: str) -> list[Path]:
    """Write a page and what is beside it; header: with what such data begin, which may be replaced."""
    beside = path.with_name(f"{path.stem}.csv")
    _refuse_others(path, _GENERATOR)
    made = make()
    if made.beside is not None:
        _refuse_others(beside, header)
        write_text(beside, made.beside)
    write_text(path, made.html)
    return [path] if made.beside is None else [path, beside]


def _refuse_others(path: Path, ours: str) -> None:
    """Raise StoreError for what is there and was not written here; ours: what the beginning of such a file has."""
    with clear_errors(path):
        if path.is_dir():
            raise StoreError(f"{path} is a directory; give `out` the name of a file, e.g. {path / 'report.html'}")
        there = path.exists()
    if there and ours not in read_regular(path, "the file there", StoreError)[:2000].decode(errors="replace"):
        raise StoreError(f"{path} is there and was not written by favorbench report; give `out` another name")
