"""How a long computation tells how far it is."""

import contextlib
import html
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

#: Called with (what is done, what there is in all), and with the name of the step where steps have names.
Progress = Callable[..., None]

SECONDS_BETWEEN = 0.1  # updates of a bar


@contextlib.contextmanager
def told(progress: Progress | None, title: str, unit: str) -> Iterator[Progress]:
    """What to call: ``progress`` itself, or where none is given a bar in a notebook, and elsewhere nothing.

    A bar is one output of its cell, which ends as a line of text: an executed notebook has no control characters in it.
    """
    if progress is None and in_notebook():
        with _bar(title, unit) as report:
            yield report
    else:
        yield progress or (lambda done, total, step="": None)


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows HTML; a terminal, with IPython too, does not."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class Bar:
    """How far something is: HTML with a bar while it runs, text when it has ended."""

    def __init__(self, title: str, unit: str):
        self.title, self.unit = title, unit
        self.done = self.total = 0
        self.step, self.running = "", True

    def __repr__(self) -> str:
        step = f", {self.step}" if self.step and self.running else ""
        return f"{self.title}: {self.done} of {self.total} {self.unit}{step}"

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self.done}" max="{max(self.total, 1)}"></progress> ' if self.running else ""
        return f"<div>{bar}{html.escape(repr(self))}</div>"


@contextlib.contextmanager
def _bar(title: str, unit: str) -> Iterator[Progress]:
    from IPython.display import display  # pyright: ignore[reportMissingImports]  (there: this is its kernel)

    bar, last = Bar(title, unit), -1.0
    shown: Any = display(bar, display_id=True)

    def report(done: int, total: int, step: str = "") -> None:
        nonlocal last
        bar.done, bar.total, bar.step = done, total, step
        if time.monotonic() - last > SECONDS_BETWEEN:
            last = time.monotonic()
            shown.update(bar)

    try:
        yield report
    finally:
        bar.running = False
        shown.update(bar)
