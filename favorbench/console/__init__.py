"""Output in a terminal, a pipe or a file: sections and messages in colours, and progress.

Results go to stdout, progress and messages to stderr.
"""

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from favorbench.formats import printable
from favorbench.progress import Progress, Tracker
from favorbench.sections import Section

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType

_WIDE = 500  # a pipe or a file has no width: nothing is cut there

NARROWEST = 20  # characters to which a column of names may shrink

_MARKS = ("*", "!", "~", "?")  # after numbers

SECONDS_BETWEEN_LINES = 60.0  # between lines of progress, without a terminal for a bar


def stdout() -> Console:
    """The console for results: as wide as the terminal, unlimited when it is a pipe."""
    return _Console(sys.stdout)


def stderr() -> Console:
    """The console for messages."""
    return _Console(sys.stderr)


class _Console(Console):
    """A console that lets the command line decide what a closed pipe means, and that no text can command.

    Plain text in a pipe and under NO_COLOR; a terminal that claims no width has 80 columns.
    """

    def __init__(self, file: IO[str]):
        super().__init__(
            file=file, highlight=False, markup=False, emoji=False, width=None if file.isatty() else _WIDE,
            color_system=None if os.environ.get("NO_COLOR") else "auto",
        )  # fmt: skip
        if self.width < 20:
            self.width = 80

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> Iterable[Segment]:
        """Everything printed comes by here. Rich's own commands are control segments; in a text there are none."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, but="\n"))


def _print_line(console: Console, text: str, style: str = "") -> None:
    """One sentence or heading: broken at words in a terminal, one line wherever there is none."""
    console.print(Text(printable(text), style=style), soft_wrap=not console.is_terminal)


def message(text: str) -> None:
    """One line for the user, in addition to the results."""
    with contextlib.suppress(OSError, ValueError):  # a closed stderr is no reason to end
        _print_line(stderr(), text)


@contextlib.contextmanager
def progress(title: str, quiet: bool, unit: str = "steps") -> Iterator[Progress | None]:
    """Show progress on stderr: a live bar in a terminal, elsewhere a line a minute; nothing when quiet.

    It yields a callback of (done, total), and of the name of the step where steps have names.
    """
    if quiet:
        yield None
        return
    console = stderr()
    if not console.is_terminal:
        with _lines(Tracker(title, unit)) as tracker:
            yield tracker
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    column = Column(max_width=console.width // 2, no_wrap=True)
    label = TextColumn("{task.description}", markup=False, table_column=column)
    columns = (label, BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, TextColumn("left"), console=console, transient=True, speed_estimate_period=600) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, step="": bar.update(
            task, completed=done, total=total, description=f"{title} {step}".strip()
        )


@contextlib.contextmanager
def _lines(tracker: Tracker) -> Iterator[Tracker]:
    """Print a line a minute from a thread, so that it also comes while one long step is under way."""
    ended = threading.Event()

    def print_lines() -> None:
        while not ended.wait(SECONDS_BETWEEN_LINES):
            if tracker.calls:
                message(repr(tracker))

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield tracker
    finally:
        ended.set()
        thread.join()


def show(console: Console, sections: Iterable[Section]) -> None:
    """Print sections below one another."""
    spaced = True
    for section in sections:
        if section.title:
            if not spaced:
                console.print()
            _print_line(console, section.title, "bold")
        if section.rows:
            _show_table(console, section)
        if section.note:
            _print_line(console, section.note, "dim")
        spaced = bool(section.rows and (section.title or section.note))
        if spaced:
            console.print()
        for sentence in section.sentences:
            _print_line(console, sentence)
        if section.code:
            console.print(Text(section.code.rstrip()), soft_wrap=True)
        spaced &= not (section.sentences or section.code)


def _show_table(console: Console, section: Section) -> None:
    """A table; long names are broken to make room for the other columns, and those that do not fit follow below."""
    names = list(section.rows[0])
    columns = {name: _aligned(section, name) for name in names}
    widths = {name: max(map(len, [name, *texts])) for name, texts in columns.items()}
    labels, rest = names[: section.labels], names[section.labels :]
    longest = max(labels or names[:1], key=widths.__getitem__)
    left = console.width - sum(2 + widths[name] for name in names if name != longest)
    if left < NARROWEST:  # not all columns fit: leave room for the widest of them
        beside = [*(widths[name] for name in labels if name != longest), max(map(widths.__getitem__, rest), default=0)]
        left = max(NARROWEST, min(console.width // 2, console.width - sum(2 + width for width in beside)))
    if left < widths[longest]:
        columns[longest] = [_broken(text, left) for text in columns[longest]]
        widths[longest] = left
    for i, group in enumerate(_groups(console.width - sum(2 + widths[name] for name in labels), rest, widths)):
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


def _aligned(section: Section, column: str) -> list[str]:
    """The texts of a column: numbers with their marks in a column of their own."""
    texts = [printable(row[column]) for row in section.rows]
    if section.numeric(column) and any(text.endswith(_MARKS) for text in texts):
        return [text if text.endswith(_MARKS) else f"{text} " for text in texts]
    return texts


def _groups(width: int, names: Sequence[str], widths: dict[str, int]) -> list[list[str]]:
    """Columns that fit into a width together, one group below the other."""
    groups: list[list[str]] = [[]]
    for name in names:
        if groups[-1] and sum(2 + widths[column] for column in [*groups[-1], name]) - 2 > width:
            groups.append([])
        groups[-1].append(name)
    return groups


def _broken(name: str, width: int) -> str:
    """A name over several lines, broken after its colons, commas and parentheses or else anywhere, then indented."""
    lines = [""]
    for part in re.findall(rf"[^ :,(]{{0,{width - 3}}}[ :,(]?", name):  # with its separator and the indent
        if lines[-1].strip() and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("  ")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
