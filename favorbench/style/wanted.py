"""What a user wants of figures: formats, a size, a title, a dark ground; held for all that are drawn meanwhile."""

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from favorbench.errors import ScenarioError
from favorbench.formats import shown

FORMATS = ("png", "svg", "pdf")

NARROWEST, LOWEST, LARGEST = 2.0, 1.5, 20.0  # inches: below, no panel has room; above, no page has


@dataclass(frozen=True)
class Wanted:
    """size: width and height of the whole figure in inches, exactly; None: as large as its panels need."""

    formats: tuple[str, ...] = ("png", "svg")
    size: tuple[float, float] | None = None
    title: str = ""
    dark: bool = False


_NOTHING = Wanted()
_WANTED: ContextVar[Wanted] = ContextVar("wanted", default=_NOTHING)


def wanted() -> Wanted:
    """What is wanted here."""
    return _WANTED.get()


@contextlib.contextmanager
def asked(what: Wanted) -> Iterator[None]:
    """Figures that are drawn meanwhile are as asked for."""
    token = _WANTED.set(what)
    try:
        yield
    finally:
        _WANTED.reset(token)


def formats_of(text: str) -> tuple[str, ...]:
    """ "png,pdf" as ("png", "pdf"). Raises ScenarioError."""
    found = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    for one in found:
        if one not in FORMATS:
            raise ScenarioError(f"--format: {shown(one)} given; allowed: {', '.join(FORMATS)}, with commas")
    return found


def size_of(text: str) -> tuple[float, float]:
    """ "3.3x2.5" as (3.3, 2.5). Raises ScenarioError for what is no size, or for one that no page or panel has."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*[xX×]\s*(\d{1,9}(?:\.\d{1,9})?)\s*(?:in)?\s*", text)
    if match:
        width, height = float(match[1]), float(match[2])
        if NARROWEST <= width <= LARGEST and LOWEST <= height <= LARGEST:
            return width, height
    raise ScenarioError(
        f"--size: {shown(text)} given; allowed: width x height in inches, {NARROWEST:g}x{LOWEST:g} to "
        f"{LARGEST:g}x{LARGEST:g}, e.g. 3.3x2.5 for one column"
    )
