"""Sections on a terminal: tables coloured by what values are worth, notes, sentences."""

import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from favorbench.console.terminal import print_line
from favorbench.formats import printable
from favorbench.sections import Section

NARROWEST = 20  # characters to which a column of names may shrink


def show(console: Console, sections: Iterable[Section]) -> None:
    """Print sections below one another."""
    spaced = True
    for section in sections:
        if section.title:
            if not spaced:
                console.print()
            print_line(console, printable(section.title), "bold")
        if section.rows:
            _show_table(console, section)
        if section.note:
            print_line(console, printable(section.note), "dim")
        spaced = bool(section.rows and (section.title or section.note))
        if spaced:
            console.print()
        for sentence in section.sentences:
            print_line(console, printable(sentence))
        if section.code:
            console.print(Text(section.code.rstrip()), soft_wrap=True)
        spaced &= not (section.sentences or section.code)


def _show_table(console: Console, section: Section) -> None:
    """A table; long names are broken where the other columns then fit, and columns that do not fit follow below."""
    names = list(section.rows[0])
    columns = {name: _aligned([printable(row[name]) for row in section.rows], section.numeric(name)) for name in names}
    widths = {name: max(map(len, [name, *texts])) for name, texts in columns.items()}
    labels, rest = names[: section.labels], names[section.labels :]
    left = console.width - sum(2 + widths[name] for name in names[1:])
    if NARROWEST <= left < widths[names[0]]:
        columns[names[0]] = [_broken(text, left) for text in columns[names[0]]]
        widths[names[0]] = left
    for i, group in enumerate(_groups(console.width, sum(2 + widths[name] for name in labels), rest, widths)):
        if i:
            console.print()
        console.print(_table(section, columns, labels, group))


def _table(section: Section, columns: dict[str, list[str]], labels: Sequence[str], group: Sequence[str]) -> Table:
    """The labels and one group of columns."""
    table = Table(box=None, pad_edge=False)
    for name in (*labels, *group):
        justify = "right" if section.numeric(name) and name not in labels[:1] else "left"
        whole = name in labels or len(group) > 1
        table.add_column(Text(name.replace(" = ", "=")), justify=justify, no_wrap=whole, overflow="fold")
    for place, row in enumerate(section.rows):
        table.add_row(*(Text(columns[name][place], section.style_of(row, name)) for name in (*labels, *group)))
    return table


def _aligned(texts: list[str], numeric: bool) -> list[str]:
    """Numbers with their marks in a column of their own."""
    marked = [text[-1:] in "*!~?" and text != "" for text in texts]
    return (
        [text + " " * (not mark) for text, mark in zip(texts, marked, strict=True)] if numeric & any(marked) else texts
    )


def _groups(width: int, labels: int, names: Sequence[str], widths: dict[str, int]) -> list[list[str]]:
    """Columns that fit beside the labels, one group below the other."""
    groups: list[list[str]] = [[]]
    for name in names:
        if groups[-1] and labels + sum(2 + widths[one] for one in [*groups[-1], name]) - 2 > width:
            groups.append([])
        groups[-1].append(name)
    return groups


def _broken(name: str, width: int) -> str:
    """A name over several lines, broken after its colons, commas and parentheses, the later lines indented."""
    lines = [""]
    for part in re.findall(r"[^ :,(]*[ :,(]?", name):
        if lines[-1].strip() and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("  ")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
