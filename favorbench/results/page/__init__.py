"""The page of a run, or of two compared: one file that loads nothing and can be read without its script.

It has no directories and no host names: it is made to be sent.
"""

import base64
import gzip
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from favorbench.engine.columns import CELL, ESTIMATOR
from favorbench.engine.provenance import VERSION
from favorbench.errors import StoreError
from favorbench.files import clear_errors, read_regular, write_text
from favorbench.formats import counted, printable
from favorbench.results import heads
from favorbench.results.compare import RunComparison, comparison_sections, comparison_sentences, reasons, sides
from favorbench.results.figures import comparison_for_page, figures_for_page, on_page
from favorbench.results.findings import cell_sentences, run_sentences
from favorbench.results.sections import PagePart, axes_of, page_parts
from favorbench.results.summary import RunData
from favorbench.results.tables import legend, rounded
from favorbench.sections import Section
from favorbench.style.charts import Chart, page_css

LIMIT = 1_000_000  # bytes of a page, so that it can be sent by mail or chat
PLAIN_DATA, PACKED_DATA = 200_000, 300_000  # bytes of CSV inside a page, as it is or compressed
MOST_ROWS = 2000  # in a comparison; above, only rows that have changed are shown

#: The columns of the CSV.
COLUMNS = (
    *CELL, *ESTIMATOR, "n", "mse_median", "mse_q10", "mse_q90", "mse_mean", "mse_low", "mse_high", "versus_uniform",
)  # fmt: skip

_GENERATOR = '<meta name="generator" content="favorbench '


class Page(NamedTuple):
    """A page, and its data as a separate CSV file where they are too large to be inside."""

    html: str
    csv: str | None


def page(results: RunData, name: str = "report") -> Page:
    """A run as HTML, below LIMIT. name: of the CSV, without its ending."""
    manifest: Mapping[str, Any] = results.manifest
    draws, cells = results.trials["draw"].nunique(), len(results.summary.drop_duplicates(list(CELL)))
    facts = f"{counted(draws, 'draw')}, {counted(cells, 'cell')}, {counted(len(results.trials), 'measurement')}"
    if draws < manifest["draws_done"]:
        facts = f"some heads only, of a run with {manifest['draws_done']} draws: {facts}"
    day = str(manifest.get("end") or manifest.get("start") or "")[:10]
    values = {
        "title": f"Estimators of softmax attention on {', '.join(results.summary['input'].unique())}",
        "lead": list(filter(None, [
            results.scenario.title or results.scenario.name,
            ", ".join(filter(None, [facts, f"favorbench {manifest['favorbench']}", day])),
        ])),
        "sentences": [*run_sentences(results), *cell_sentences(heads.without_many(results))],
        "legends": [legend(results), _HOW],
        "manifests": _run_manifest(results),
    }  # fmt: skip
    rows = f"{len(results.summary)} rows, one for each cell and estimator at each size, with six digits"
    others = "favorbench report RUN --heads H has a page of some heads."
    data = _packed(data_csv(results), f"{name}.csv", rows)
    return _fitted(values, page_parts(results), figures_for_page(results), data, others)


def study_page(
    title: str, lead: Sequence[str], sections: Sequence[Section], charts: Sequence[Chart], manifest: Mapping[str, Any],
    scenario: Mapping[str, Any], csv: str, name: str = "report",
) -> Page:  # fmt: skip
    """A recommendation, or a study of a model, as HTML: sentences, code, figures and tables."""
    values = {
        "title": title, "lead": lead, "sentences": [part for section in sections for part in section.sentences],
        "code": [section for section in sections if section.code],
        "legends": [section.note for section in sections if section.note and not section.rows],
        "manifests": _manifest(scenario, {}, manifest),
    }  # fmt: skip
    parts = [
        PagePart(part.title, [part], {}, notes=(part.note,) if part.note else ()) for part in sections if part.rows
    ]
    rows = f"{max(0, csv.count(chr(10)) - 1)} rows"
    return _fitted(values, parts, on_page(charts), _packed(csv, f"{name}.csv", rows))


_HOW = (
    "In the table of a cell: the median over draws at each size, best first at the largest; at that size the interval "
    "of the median, letters, and the verdict of a sign test on the same draws against uniform attention (Holm over the "
    "cell, 5 %). Estimators without a letter in common differ detectably. No detectable difference is a verdict, not a "
    "gap. Italic: bounds, which look at every pair of a query and a key."
)


def comparison_page(comparison: RunComparison, name: str = "report") -> Page:
    """Two runs compared, as HTML, below LIMIT. name: of the CSV, without its ending."""
    only_changed = len(comparison.rows) > MOST_ROWS
    tables = [table for table in comparison_sections(comparison, only_changed, in_words=True) if table.rows]
    cells = {f"{comparison.metric}, {row.cell}": row.key.cell for row in comparison.rows}
    axes = dict(zip(cells, axes_of(pd.DataFrame(cells.values(), columns=list(CELL))), strict=True))
    parts = [
        PagePart(table.title.removeprefix(f"{comparison.metric}, "), [table], axes[table.title]) for table in tables
    ]
    less = [f"Only the rows that have changed are shown, of {len(comparison.rows)}."] if only_changed else []
    values = {
        "title": f"{comparison.old.path.name} against {comparison.new.path.name}",
        "lead": [
            line.replace(str(run.path), run.path.name) if run.path.is_absolute() else line
            for line, run in zip(sides(comparison), (comparison.old, comparison.new), strict=True)
        ],
        "sentences": [*comparison_sentences(comparison), *less, *(f"x {reason}" for reason in reasons(comparison))],
        "legends": [_HOW_COMPARED],
        "manifests": Markup("").join(
            Markup("<h3>{}</h3>{}").format(side, _run_manifest(run))
            for side, run in (("old", comparison.old), ("new", comparison.new))
        ),
    }
    csv = comparison.frame().to_csv(index=False, float_format="%.6g")
    data = _packed(csv, f"{name}.csv", f"{len(comparison.rows)} rows, with six digits")
    return _fitted(values, parts, comparison_for_page(comparison), data)


_HOW_COMPARED = (
    "Each row is one estimator at one size in one cell: the median error in the old and in the new run, and the median "
    "of new / old over the draws with its interval. + worse, - better, ~ neither is detectable, = the same."
)


def _fitted(
    values: dict[str, Any], parts: Sequence[PagePart], figures: Sequence[tuple[str, str, str, str]],
    data: tuple[dict[str, str], str | None], others: str = "",
) -> Page:  # fmt: skip
    """The page with as much as there is room for: open tables, then figures, then closed tables.

    others: where the reader finds the parts that are left out, besides the data.
    """
    folder, macros = resources.files("favorbench.results.page"), _macros()
    look, script = (folder.joinpath(file).read_text(encoding="utf-8") for file in ("style.css", "script.js"))
    values = values | {"data": data[0], "version": VERSION, "script": script}
    values["style"] = look + page_css(svg for *_, svg in figures)
    template = _ENVIRONMENT.get_template("page.html")
    room = LIMIT - len(template.render(values).encode()) - 400
    shown, room = _fitting([macros.part(part) for part in parts if not part.closed], room)
    drawn, room = _fitting([macros.figure(title, caption, _shown(svg)) for _, title, caption, svg in figures], room)
    single, _ = _fitting([macros.part(part) for part in parts if part.closed], room)
    counts = {"tables": (len(shown) + len(single), len(parts)), "figures": (len(drawn), len(figures))}
    missing = " and ".join(f"{of - kept} of {of} {what}" for what, (kept, of) in counts.items() if kept < of)
    left_out = (
        f"Left out, for the page to stay below {LIMIT // 1_000_000} MB: {missing}. The numbers are in the CSV (below). "
        f"{others}"
    )
    joined = {"headline": drawn[:1], "figures": drawn[1:], "parts": shown + single}
    values |= {name: Markup("").join(texts) for name, texts in joined.items()}
    return Page(template.render(values, left_out=left_out if missing else ""), data[1])


def _fitting(texts: list[str], room: int) -> tuple[list[str], int]:
    """The first of these texts for which there is room, and the room left."""
    sizes = [len(text.encode()) for text in texts]
    count = sum(total <= room for total in itertools.accumulate(sizes))
    return texts[:count], room - sum(sizes[:count])


def _packed(csv: str, name: str, rows: str) -> tuple[dict[str, str], str | None]:
    """The link to a CSV, which is in the page if there is room, plain or compressed; else the text is returned too."""
    csv = _ABSOLUTE.sub("", csv)
    plain, small = csv.encode(), gzip.compress(csv.encode(), mtime=0)
    data = {"name": name, "rows": rows, "note": "", "href": ""}
    if len(plain) <= PLAIN_DATA:
        return data | {"href": f"data:text/csv;base64,{base64.b64encode(plain).decode()}"}, None
    if len(small) > PACKED_DATA:
        return data, csv
    href = f"data:application/gzip;base64,{base64.b64encode(small).decode()}"
    return data | {"name": f"{name}.gz", "href": href, "note": ", compressed; pandas.read_csv reads it as it is"}, None


def data_csv(results: RunData) -> str:
    """The summary as CSV to six digits, with 0 in place of rounding errors."""
    return rounded(results.summary[list(COLUMNS)], results.trials).to_csv(index=False, float_format="%.6g")


def _run_manifest(results: RunData) -> Markup:
    manifest = results.manifest
    used = {"digest of the scenario": manifest["digest"], "draws": f"{manifest['draws_done']} of {manifest['draws']}"}
    return _manifest(results.scenario.model_dump(mode="json"), used, manifest)


def _manifest(scenario: Mapping[str, Any], used: Mapping[str, Any], manifest: Mapping[str, Any]) -> Markup:
    """The scenario, the versions and machine, and the manifest as it is."""
    scenario, manifest = _without_directories(scenario), _without_directories(manifest)
    for machine in manifest.get("workers", []):
        machine.pop("host", None)
    scenario = {
        key: ", ".join(map(str, value)) if isinstance(value, list | dict) else str(value)
        for key, value in scenario.items()
        if value not in (None, [], {}, "")
    }
    used = (
        {"favorbench": manifest["favorbench"]}
        | dict(used)
        | {
            "libraries": ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items()),
        }
        | {key: manifest[key] for key in ("start", "end", "platform", "cpu", "gpu") if manifest.get(key)}
    )
    tables = [
        Section(title, [{"key": key, "value": str(value)} for key, value in values.items()])
        for title, values in (("Scenario", scenario), ("Versions and machine", used))
    ]
    return _macros().manifest(tables, json.dumps(manifest, indent=1, ensure_ascii=False))


def _without_directories(value: Any) -> Any:
    """Plain data, copied, with the names of files in place of absolute paths."""
    if isinstance(value, Mapping):
        return {key: _without_directories(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_directories(item) for item in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def _sha256(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


#: The directories of an absolute path.
_ABSOLUTE = re.compile(r"""(?<![\w.~/<-])/(?:[^/\s<>"',;]+/)+""")


def _shown(value: Any) -> Any:
    """A text without directories, control characters and the backquotes of keys."""
    return printable(re.sub(r"`(\w+)`", r"\1", _ABSOLUTE.sub("", value)), "\n") if type(value) is str else value


_ENVIRONMENT = Environment(
    loader=PackageLoader("favorbench.results.page", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True,
    finalize=_shown,
)  # fmt: skip
_ENVIRONMENT.filters |= {"sha256": _sha256, "shown": _shown}


def _macros() -> Any:
    return _ENVIRONMENT.get_template("parts.html").module


def write_page(results: RunData, path: Path) -> list[Path]:
    """Write the page, and its data next to it where they are too large to be inside; return the files.

    A page that is there is replaced. Raises StoreError for a directory, and for a file that favorbench did not write.
    """
    return _write(lambda: page(results, path.stem), path, ",".join(COLUMNS))


def write_study(make: Callable[[str], Page], path: Path, header: str) -> list[Path]:
    """Write the page that ``make`` gives for the name of a CSV, as ``write_page`` does. header: of that CSV."""
    return _write(lambda: make(path.stem), path, header)


def write_comparison(comparison: RunComparison, path: Path) -> list[Path]:
    """Write the page of a comparison, as ``write_page`` does."""
    return _write(lambda: comparison_page(comparison, path.stem), path, "mark,verdict,reason,")


def _write(make: Callable[[], Page], path: Path, header: str) -> list[Path]:
    """Write a page and the data next to it. header: the beginning of data that may be replaced."""
    _refuse_others(path, _GENERATOR)
    made, csv = make(), path.with_name(f"{path.stem}.csv")
    if made.csv is not None:
        _refuse_others(csv, header)
        write_text(csv, made.csv)
    write_text(path, made.html)
    return [path] if made.csv is None else [path, csv]


def _refuse_others(path: Path, ours: str) -> None:
    """Raise StoreError for a file that was not written here. ours: what the beginning of such a file has."""
    with clear_errors(path):
        if path.is_dir():
            raise StoreError(f"{path} is a directory; give `out` the name of a file, e.g. {path / 'report.html'}")
        there = path.exists()
    if there and ours not in read_regular(path, "the file there", StoreError)[:2000].decode(errors="replace"):
        raise StoreError(f"{path} is there and was not written by favorbench report; give `out` another name")
