"""The consoles: where results go and where messages go, in a terminal, a pipe or a file."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from favorbench.formats import printable
from favorbench.progress import Progress, Tracker

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType

_WIDE = 500  # a pipe or a file has no width: nothing is cut there

SECONDS_BETWEEN_LINES = 60.0  # between lines of progress, without a terminal for a bar


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
    """Show progress on stderr: a live bar in a terminal, elsewhere a line a minute; nothing when quiet.

    What it yields is called with (done, total), and with the name of the step where steps have names.
    """
    console = stderr()
    if quiet:
        yield None
        return
    if not console.is_terminal:
        with _lines(Tracker(title, unit)) as tracker:
            yield tracker
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
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
                with contextlib.suppress(OSError, ValueError):  # a closed stderr is no reason to end
                    message(repr(tracker))

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield tracker
    finally:
        ended.set()
        thread.join()
