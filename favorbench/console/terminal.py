"""The consoles: where results go and where messages go, in a terminal, a pipe or a file."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from favorbench.formats import printable
from favorbench.progress import Progress

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType

_WIDE = 500  # a pipe or a file has no width: nothing is cut there

SECONDS_BETWEEN_LINES = 60.0  # of progress, where there is no terminal for a bar


def stdout() -> Console:
    """The console for results: as wide as the terminal, unlimited when it is a pipe."""
    return _console(sys.stdout.isatty(), stderr=False)


def stderr() -> Console:
    """The console for messages."""
    return _console(sys.stderr.isatty(), stderr=True)


class _Console(Console):
    """A console that lets the command line decide what a closed pipe means, and that no text can command."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> Iterable[Segment]:
        """Everything printed comes by here. Rich's own commands are control segments; in a text there are none."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, but="\n"))


def _console(terminal: bool, stderr: bool) -> Console:
    """Plain text in a pipe and under NO_COLOR; a terminal that claims no width has 80 columns."""
    console = _Console(
        stderr=stderr, highlight=False, markup=False, emoji=False, width=None if terminal else _WIDE,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )  # fmt: skip
    if console.width < 20:
        console.width = 80
    return console


def print_line(console: Console, text: str | Text, style: str = "") -> None:
    """One sentence or heading: broken at words in a terminal, one line wherever there is none."""
    console.print(Text(text, style=style) if isinstance(text, str) else text, soft_wrap=not console.is_terminal)


def message(text: str) -> None:
    """One line for the user, beside the results."""
    print_line(stderr(), printable(text))


@contextlib.contextmanager
def progress(title: str, quiet: bool, unit: str = "steps") -> Iterator[Progress | None]:
    """How far a command is, on stderr: a live bar in a terminal, elsewhere a line a minute; nothing when quiet.

    What it yields is called with (done, total), and with the name of the step where steps have names.
    """
    console = stderr()
    if quiet:
        yield None
    elif console.is_terminal:
        with _bar(console, title) as report:
            yield report
    else:
        with _lines(title, unit) as report:
            yield report


@contextlib.contextmanager
def _bar(console: Console, title: str) -> Iterator[Progress]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, step="": bar.update(
            task, completed=done, total=total, description=f"{title} {step}".strip()
        )


@contextlib.contextmanager
def _lines(title: str, unit: str) -> Iterator[Progress]:
    """A line a minute from a thread, so that it also comes while one long step is under way."""
    calls: list[tuple[float, int, int, str]] = []  # the first and the last: when, done, total, step
    ended = threading.Event()

    def report(done: int, total: int, step: str = "") -> None:
        calls[1:] = [(time.monotonic(), done, total, step)]

    def tell() -> None:
        while not ended.wait(SECONDS_BETWEEN_LINES):
            if calls:
                with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more: no reason to end
                    message(_how_far(title, unit, calls[0], calls[-1]))

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield report
    finally:
        ended.set()
        teller.join()


def _how_far(title: str, unit: str, first: tuple[float, int, int, str], last: tuple[float, int, int, str]) -> str:
    """ "sweep quick: 120 of 400 draws, 93 draws/min, about 3 min left".

    What was there at the start says nothing about the speed.
    """
    done, total, step = last[1:]
    text = f"{title}: {done} of {total} {unit}{f', {step}' if step else ''}"
    if done <= first[1]:
        return text
    each = (last[0] - first[0]) / (done - first[1])
    left = max(each * (total - done) - (time.monotonic() - last[0]), 0.0)
    return f"{text}, {rate(each, unit)}, about {duration(left)} left"


def rate(seconds: float, unit: str) -> str:
    """ "12 draws/min", "3.4 draws/s", "5 min for each of the draws", by the seconds that each takes."""
    if seconds > 60:
        return f"{duration(seconds)} for each of the {unit}"
    return f"{60 / seconds:.2g} {unit}/min" if seconds > 1 else f"{1 / max(seconds, 1e-6):.3g} {unit}/s"


def duration(seconds: float) -> str:
    """40 s, 3 min, 2.5 h: as exactly as an estimate can be."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
