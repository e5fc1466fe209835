"""The consoles: where results go and where messages go, in a terminal, a pipe or a file."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.text import Text

_WIDE = 500  # a pipe or a file has no width: nothing is cut there


def stdout() -> Console:
    """The console for results: as wide as the terminal, unlimited when it is a pipe."""
    return _console(sys.stdout.isatty(), stderr=False)


def stderr() -> Console:
    """The console for messages."""
    return _console(sys.stderr.isatty(), stderr=True)


class _Console(Console):
    """A console that lets the command line decide what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _console(terminal: bool, stderr: bool) -> Console:
    """Plain text in a pipe and under NO_COLOR; a terminal that claims no width has 80 columns."""
    console = _Console(
        stderr=stderr, highlight=False, markup=False, emoji=False, width=None if terminal else _WIDE,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )  # fmt: skip
    if console.width < 20:
        console.width = 80
    return console


def message(text: str) -> None:
    """One line for the user, beside the results."""
    console = stderr()
    console.print(Text(text), soft_wrap=not console.is_terminal)


@contextlib.contextmanager
def progress(title: str, quiet: bool) -> Iterator[Callable[..., None] | None]:
    """A live bar with the time left on stderr; nothing when quiet or when stderr is no terminal.

    What it yields is called with (done, total), and with the name of the step where steps have names.
    """
    console = stderr()
    if quiet or not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    left = TextColumn("left")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        left,
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, step="": bar.update(
            task, completed=done, total=total, description=f"{title} {step}".strip()
        )
