"""Sections of results: titled tables with notes and sentences, as Markdown, LaTeX and HTML.

``console.show`` writes the same sections to a terminal, and the page of ``favorbench report`` as sortable tables.
"""

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from favorbench.formats import printable

_NUMBER = re.compile(r"((<|<= |>= |> )?[-+]?(\d[\d.]*(e-?\d+)?|inf)( %)?[*!~?]*|[-+~=x]|)")
_LATEX = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_LATEX |= {"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"}
_LATEX |= {c: f"\\{c}" for c in "&%$#_{}"}


@dataclass(frozen=True)
class Section:
    """A table with a title above it, and a note and sentences below it.

    Parameters
    ----------
    title : str
        The heading; may be empty.
    rows : sequence of mappings
        The text of each column, for each row.
    note : str
        What the columns mean.
    sentences : sequence of str
        Findings.
    code : str
        Lines of Python.
    data : pandas.DataFrame, optional
        The numbers behind the texts.
    labels : int
        How many columns, from the left, name the row.
    style : function, optional
        The terminal style of a cell, given its column and its text.
    """

    title: str = ""
    rows: Sequence[Mapping[str, str]] = ()
    note: str = ""
    sentences: Sequence[str] = ()
    code: str = ""
    data: Any = field(default=None, compare=False, repr=False)
    labels: int = 1
    style: Callable[[str, str], str] | None = None

    def numeric(self, column: str) -> bool:
        """Whether a column holds numbers, which are aligned on the right."""
        texts = [row[column] for row in self.rows]
        return all(map(_NUMBER.fullmatch, texts)) and any(c.isdigit() for text in texts for c in text)

    def style_of(self, row: Mapping[str, str], column: str) -> str:
        """The terminal style of a cell; rows of uniform attention have none."""
        return "" if self.style is None or "uniform" in row.values() else self.style(column, row[column])

    @property
    def header(self) -> str:
        """The column that names the row."""
        return "estimator" if "estimator" in self.rows[0] else next(iter(self.rows[0]))

    def _repr_html_(self) -> str:
        return to_html([self])

    def __repr__(self) -> str:
        return to_text([self])


class Sections(tuple[Section, ...]):
    """Sections below one another; in a notebook they are HTML."""

    def _repr_html_(self) -> str:
        return to_html(self)

    def __repr__(self) -> str:
        return to_text(self)


def dedupe_notes(sections: Iterable[Section]) -> Sections:
    """Drop a note that the next section repeats."""
    kept = list(sections)
    return Sections(
        replace(section, note="") if section.note in [following.note for following in kept[i + 1 : i + 2]] else section
        for i, section in enumerate(kept)
    )


def to_text(sections: Iterable[Section]) -> str:
    """Markdown without marks around titles, for a Python prompt."""
    return printable(to_markdown(sections, "{}"), but="\n").rstrip("\n")


def to_markdown(sections: Iterable[Section], heading: str = "**{}**") -> str:
    """GitHub tables."""
    parts = []
    for section in sections:
        parts += [
            section.title and heading.format(printable(section.title)),
            _markdown_table(section), printable(section.note),
            "\n".join(f"* {printable(sentence)}" for sentence in section.sentences),
            section.code and f"```python\n{section.code.rstrip()}\n```",
        ]  # fmt: skip
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown_table(section: Section) -> str:
    if not section.rows:
        return ""
    names = list(section.rows[0])
    rule = ["---:" if section.numeric(name) else "---" for name in names]
    cells = [[printable(text).replace("|", "\\|") for text in row.values()] for row in section.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, rule, *cells))


def to_latex(sections: Iterable[Section]) -> str:
    """Tables for LaTeX with booktabs; sentences are comments."""
    lines = ["% needs \\usepackage{booktabs}"]
    for section in sections:
        lines += [f"% {printable(text)}" for text in (section.note, *section.sentences) if text]
        if not section.rows:
            continue
        names = list(section.rows[0])
        lines.append("\\begin{tabular}{" + "".join("lr"[section.numeric(name)] for name in names) + "}\n\\toprule")
        if section.title:
            lines.append(f"\\multicolumn{{{len(names)}}}{{l}}{{{_latex(section.title)}}} \\\\\n\\midrule")
        lines.append(" & ".join(f"${_latex(n)}$" if n[1:4] == " = " else _latex(n) for n in names) + " \\\\\n\\midrule")
        lines += [" & ".join(map(_latex_cell, row.values())) + " \\\\" for row in section.rows]
        lines.append("\\bottomrule\n\\end{tabular}\n")
    return "\n".join(lines)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in printable(text))


def _latex_cell(text: str) -> str:
    """A number in math mode, with its power of ten written out; other text escaped."""
    if not _NUMBER.fullmatch(text) or not any(c.isdigit() for c in text):
        return _latex(text)
    number, mark = re.fullmatch(r"(.*?)([*!~?]*)", text).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return "$" + re.sub(r"e(-?\d+)", r" \\times 10^{\1}", number.replace("%", "\\%")) + "$" + _latex(mark)


def to_html(sections: Iterable[Section]) -> str:
    """Plain HTML for a notebook: without colours, so that it can be read on light and on dark backgrounds."""
    return "".join(map(_html, sections))


def _html(section: Section) -> str:
    table = ""
    if section.rows:
        names = list(section.rows[0])
        styles = [f'style="text-align:{("left", "right")[section.numeric(name)]}"' for name in names]
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        cells = ((f"<td {style}>{escape(text)}</td>" for style, text in zip(styles, row.values(), strict=True))
                 for row in section.rows)  # fmt: skip
        body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    title = section.title and f"<p><b>{escape(section.title)}</b></p>"
    note = section.note and f'<p style="opacity:0.75">{escape(section.note)}</p>'
    code = section.code and f"<pre>{escape(section.code, chr(10))}</pre>"
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in section.sentences)
    return f"<div>{title}{table}{note}{code}{items and f'<ul>{items}</ul>'}</div>\n"


def escape(value: object, but: str = "") -> str:
    """Text as HTML shows it; control characters other than ``but`` are shown, not obeyed."""
    return html.escape(printable(str(value), but))
