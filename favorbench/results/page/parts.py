"""The parts of a page: sections of many heads and of cells, filters, legends, the manifest."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from favorbench.engine.columns import CELL, Labels
from favorbench.formats import HEADINGS, printable
from favorbench.results import heads
from favorbench.results.heads import Population
from favorbench.results.page import dots, figures, tables
from favorbench.results.page.looks import Looks, names
from favorbench.results.page.text import escaped
from favorbench.results.ranking import Ranking
from favorbench.results.ranking import legend as ranking_legend
from favorbench.results.results import Results
from favorbench.results.tables import Table, legend, size_axis, varying


class Section(NamedTuple):
    """A part about one cell, or one population; what of it is in a page depends on the room there is.

    closed: it is one of many, and stands behind all that is open.
    """

    start: str
    body: str
    figures: str
    end: str
    closed: bool = False


def axes_of(results: Results) -> list[str]:
    """The axes of cells that can be chosen from; those that follow the length are left out."""
    return [axis for axis in varying(results.summary, CELL) if axis not in ("query_len", "query_rows")]


def choices_of(results: Results) -> dict[str, list[str]]:
    """The values of each axis of cells that can be chosen from."""
    summary = results.summary
    return {
        axis: list(dict.fromkeys(names_of(row, [axis])[axis] for _, row in summary.drop_duplicates(axis).iterrows()))
        for axis in axes_of(results)
    }


def names_of(row: Labels, axes: Iterable[str]) -> dict[str, str]:
    """The values of axes as texts."""
    return {axis: f"{row[axis]:g}" if isinstance(row[axis], float) else str(row[axis]) for axis in axes}


def of_population(results: Results, one: Population, rows: pd.DataFrame, looks: Looks, number: int) -> Section:
    """Many heads together. rows: of ``on_each_head``, of these heads."""
    drawn = figures.of_heads(results, one.rows, looks, one.title)
    pictures = [(dots.each_head(rows, looks, one.title), _DOTS), *((picture, "") for picture in drawn)]
    body = tables.over_heads(one, size_axis(results), looks)
    body += f"<p class=note>{escaped(heads.legend(results))}</p>\n"
    start = f"<section data-c={number}><h2>{escaped(one.title)}</h2>\n"
    return Section(start, body, _figures(pictures, rows, looks, "Bands: quartiles over heads."), "</section>\n")


_DOTS = (
    "Each head by itself, of each estimator at its largest size: a dot (at an edge: beyond it). "
    "Line: quartiles; bar: the median."
)


def of_cell(results: Results, table: Table, ranking: Ranking, rows: pd.DataFrame, looks: Looks, number: int) -> Section:
    """One cell with its figures. rows: of ``on_each_head``, of this cell."""
    start = f"<section data-c={number}><h2>{escaped(ranking.title)}</h2>\n"
    return Section(start, _table(table, ranking, looks), _drawn(results, table, ranking, rows, looks), "</section>\n")


def of_one_of_many(
    results: Results, table: Table, ranking: Ranking, rows: pd.DataFrame | None, looks: Looks, number: int, said: str
) -> Section:
    """One of several heads, with its sentence: closed, until it is asked for. rows: None for no figures."""
    start = f"<details data-c={number}><summary>{escaped(ranking.title)}</summary>\n<p>{escaped(said)}</p>\n"
    drawn = "" if rows is None else _drawn(results, table, ranking, rows, looks)
    return Section(start, _table(table, ranking, looks), drawn, "</details>\n", True)


def _drawn(results: Results, table: Table, ranking: Ranking, rows: pd.DataFrame, looks: Looks) -> str:
    pictures = [(picture, "") for picture in figures.of_cell(results, rows, looks, ranking.title, table.floor)]
    return _figures(pictures, rows, looks, "Bands: 10 % to 90 % of draws.")


def _table(table: Table, ranking: Ranking, looks: Looks) -> str:
    return f"{tables.of_cell(table, ranking, looks)}<p class=note>{escaped(ranking_legend(ranking))}</p>\n"


def _figures(pictures: Sequence[tuple[str, str]], rows: pd.DataFrame, looks: Looks, bands: str) -> str:
    """Pictures in frames that scroll, and what their lines are."""
    if not pictures:
        return ""
    frames = [
        f"<figure{' class=wide' if said else ''}>"
        f'<div class=scroll tabindex=0 role=region aria-label="figure">{picture}</div>'
        f"{f'<figcaption>{escaped(said)}</figcaption>' if said else ''}</figure>\n"
        for picture, said in pictures
    ]
    present = ["uniform", *dict.fromkeys(names(rows))]
    said = f"{bands} Thick grey steps: the Pareto front. Arrows: beyond the axis."
    thin = any(looks.of[name] == "o" for name in present)
    said += " Thin grey: others, which say their name under the pointer." if thin else ""
    return f"<div class=figures>{''.join(frames)}</div>\n{_keys(present, looks)}<p class=note>{said}</p>\n"


def _keys(names: Sequence[str], looks: Looks) -> str:
    """The legend: names beside their lines."""
    entries = []
    for name in names:
        look = looks.of[name]
        if look == "o":
            continue
        shape = f"m{look[1:]}" if look.startswith("s") else "dot"
        marker = "" if look == "u" else f'<use href="#{shape}" x="17" y="6"/>'
        line = f'<path class="l" d="M0 6H34"/>{marker}'
        key = f'<svg class="key {look}" width="34" height="12" aria-hidden="true">{line}</svg>'
        entries.append(f"<li data-e={looks.numbers[name]}>{key} {escaped(name)}")
    return f"<ul class=legend>{''.join(entries)}</ul>\n"


def filters(labels: Iterable[tuple[str, str]], choices: Mapping[str, Iterable[str]]) -> str:
    """The fields of the form: estimators by parts of their names, samplers, and axes with several values."""
    known = list(labels)
    names = "".join(f"<option>{escaped(name)}</option>" for name in dict.fromkeys(name for name, _ in known))
    hint = "all; commas for several"
    parts = [
        f'<label>map or method <input type="search" name="map" list="maps" placeholder="{hint}"></label>'
        f'<datalist id="maps">{names}</datalist>'
    ]
    samplers = sorted({sampler for _, sampler in known} - {"-"})
    if len(samplers) > 1:
        parts.append(_choice("sampler", "sampler", samplers))
    parts += [_choice(axis, HEADINGS.get(axis, axis), values) for axis, values in choices.items()]
    return "\n".join(parts)


def _choice(name: str, label: str, values: Iterable[str]) -> str:
    options = "".join(f'<option value="{escaped(value)}">{escaped(value)}</option>' for value in values)
    return f'<label>{escaped(label)} <select name="{name}"><option value="">all</option>{options}</select></label>'


def how_to_read(results: Results) -> str:
    """What the numbers, marks and letters are."""
    return f"<p>{escaped(legend(results))}</p>\n<p>{_HOW}</p>\n"


_HOW = (
    "In the table of a cell: the median over draws at each size, best first at the largest; of that size the interval "
    "of the median, letters, and what a sign test on the same draws says against uniform attention (Holm over the "
    "cell, 5 %). Estimators without a letter in common differ detectably. No detectable difference is a verdict, not a "
    "gap. Italic: bounds, which look at every pair of a query and a key."
)


def manifest(results: Results) -> str:
    """What was asked and with what, and the manifest as it is."""
    said, asked = results.manifest, results.scenario.model_dump(mode="json")
    values = {key: _joined(value) for key, value in asked.items() if value not in (None, [], "")}
    versions: Any = said.get("versions", {})
    used = {
        "favorbench": said["favorbench"],
        "digest of the scenario": said["digest"],
        "draws": f"{said['draws_done']} of {said['draws']}",
        "libraries": ", ".join(f"{name} {version}" for name, version in versions.items()),
    } | {key: said[key] for key in ("start", "end", "platform", "cpu", "gpu") if said.get(key)}
    text = printable(json.dumps(dict(said), indent=1, ensure_ascii=False), but="\n")
    whole = f"<details><summary>The whole manifest</summary><pre tabindex=0>{escaped_lines(text)}</pre></details>"
    return tables.records("What was asked", values) + tables.records("With what", used) + whole


def escaped_lines(text: str) -> str:
    """Text of several lines."""
    return "\n".join(escaped(line) for line in text.split("\n"))


def _joined(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def listed(sentences: Sequence[str]) -> str:
    """Sentences as a list; that a run is partial stands out."""
    items = [
        f"<li class=partial>{escaped(text)}" if text.startswith("PARTIAL") else f"<li>{escaped(text)}"
        for text in sentences
    ]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def names_for_script(labels: Iterable[tuple[str, str]], cells: Sequence[Mapping[str, str]]) -> dict[str, object]:
    """What the script filters by: of each number in data-e map and sampler, of each in data-c its values."""
    return {"estimators": list(labels), "cells": [dict(cell) for cell in cells]}
