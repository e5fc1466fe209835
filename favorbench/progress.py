"""Progress of a long computation: a callback, its text with the time left, and a bar in a notebook."""

import contextlib
import html
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from favorbench.formats import format_seconds

#: Called with (done, total), and with the name of the step where steps have names and it takes ``step``.
Progress = Callable[..., None]

SECONDS_BETWEEN = 0.1  # updates of a bar


class Tracker:
    """Record the calls of a progress callback, and describe the state: "sweep: 120 of 400 draws, about 3 min left".

    The time left is that of the remaining steps at the mean speed since the first call, or since ``done`` fell: then
    another kind of steps has begun.
    """

    def __init__(self, title: str, unit: str):
        self.title, self.unit, self.running = title, unit, True
        self.calls: list[tuple[float, int, int, str]] = []  # the first and the last: time, done, total, step

    def __call__(self, done: int, total: int, step: str = "") -> None:
        if self.calls and done < self.calls[-1][1]:
            self.calls.clear()
        self.calls[1:] = [(time.monotonic(), done, total, step)]

    def __repr__(self) -> str:
        if not self.calls:
            return self.title
        (start, before, *_), (now, done, total, step) = self.calls[0], self.calls[-1]
        text = f"{self.title}: {done} of {total} {self.unit}{f', {step}' if step and self.running else ''}"
        if self.running and before < done < total:
            text += f", about {format_seconds((now - start) / (done - before) * (total - done))} left"
        return text

    def _repr_html_(self) -> str:
        done, total = self.calls[-1][1:3] if self.calls else (0, 1)
        bar = f'<progress value="{done}" max="{max(total, 1)}"></progress> ' if self.running else ""
        return f"<div>{bar}{html.escape(repr(self))}</div>"


@contextlib.contextmanager
def progress_callback(progress: Progress | None, title: str, unit: str) -> Iterator[Progress]:
    """Yield ``progress`` itself; if there is none, a bar in a notebook, and elsewhere a function that does nothing.

    The bar is one output of its cell, and ends as a line of text.
    """
    if progress is not None or not in_notebook():
        yield _with_step(progress or (lambda done, total: None))
        return
    from IPython.display import display  # pyright: ignore[reportMissingImports]  (there: this is its kernel)

    tracker, last = Tracker(title, unit), -1.0
    shown: Any = display(tracker, display_id=True)

    def report(done: int, total: int, step: str = "") -> None:
        nonlocal last
        tracker(done, total, step)
        if time.monotonic() - last > SECONDS_BETWEEN:
            last = time.monotonic()
            shown.update(tracker)

    try:
        yield report
    finally:
        tracker.running = False
        shown.update(tracker)


def _with_step(progress: Progress) -> Progress:
    """The callback, made to ignore the name of a step if it takes (done, total) alone."""
    with contextlib.suppress(TypeError, ValueError):
        inspect.signature(progress).bind(0, 1, step="")
        return progress
    return lambda done, total, step="": progress(done, total)


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows HTML; a terminal, with IPython too, does not."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
