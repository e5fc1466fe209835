"""Curves and dots as inline SVG: axes, lines, markers; the value of each mark is its title."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from favorbench.results.page.text import escaped

MARKERS = 8  # shapes m0 to m7 of the template, and as many colours of the style
DECADES = 7  # ticks of a log axis, at most


class Point(NamedTuple):
    """One measurement: its place, the band around it, and what it says in words."""

    x: float
    y: float
    low: float
    high: float
    words: str


class Series(NamedTuple):
    """One estimator. look: a class of the style: s0 to s7 named ones, o others, b0 to b3 baselines, u uniform.

    flat: it has no size, and its only point holds everywhere.
    """

    number: int
    look: str
    points: tuple[Point, ...]
    flat: bool = False


class Axis(NamedTuple):
    """What an axis shows, from where to where, and where its ticks are."""

    label: str
    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """How far along the axis a value is, from 0 to 1; what lies beyond stands at the edge."""
        if not self.low < self.high or math.isnan(value):
            return 0.5 if value == self.low else 1.0  # what is not a number is as bad as can be
        inside = min(max(value, self.low), self.high)
        if self.log:
            return math.log(inside / self.low) / math.log(self.high / self.low)
        return (inside - self.low) / (self.high - self.low)


def log_axis(label: str, values: Sequence[float], low: float, high: float) -> Axis | None:
    """A log axis that shows the positive ``values``, but nothing below ``low`` or above ``high``; None without any."""
    positive = [min(max(v, low), high) for v in values if v > 0 and math.isfinite(v)]
    if not positive:
        return None
    least, most = math.log10(min(positive)), math.log10(max(positive))
    margin = 0.05 * max(most - least, 0.4)
    least, most = least - margin, most + margin
    decades = range(math.ceil(least), math.floor(most) + 1)
    ticks = [10.0**power for power in decades[:: max(1, -(-len(decades) // DECADES))]]
    if len(ticks) < 2:
        steps = itertools.product(range(math.floor(least), math.ceil(most) + 1), (1, 2, 5))
        ticks = [digit * 10.0**power for power, digit in steps if least <= math.log10(digit * 10.0**power) <= most]
    return Axis(label, 10**least, 10**most, True, tuple(ticks))


def size_axis(label: str, sizes: Sequence[float]) -> Axis:
    """An axis with ticks at the measured sizes; a log axis where they span a factor of 8 or more."""
    ordered = sorted(set(sizes))
    log = ordered[0] > 0 and ordered[-1] / ordered[0] >= 8
    margin = (ordered[-1] / ordered[0]) ** 0.04 if log else 0.04 * (ordered[-1] - ordered[0])
    low, high = (ordered[0] / margin, ordered[-1] * margin) if log else (ordered[0] - margin, ordered[-1] + margin)
    return Axis(label, low, high, log, tuple(ordered[:: -(-len(ordered) // DECADES)]))


class Plot:
    """A picture of so many units, with an area for marks inside; ``add`` what is drawn, ``svg`` is the element."""

    def __init__(self, x: Axis, y: Axis | None, size: tuple[int, int], left: int):
        self.x, self.y, (self.width, self.height), self.left = x, y, size, left
        self.right, self.top, self.bottom = self.width - 14, 22, self.height - 46
        self.parts: list[str] = []
        self._x_axis()
        if y:
            self._y_axis(y)

    def across(self, value: float) -> float:
        """The place of a value from left to right."""
        return self.left + self.x.share(value) * (self.right - self.left)

    def up(self, value: float) -> float:
        """The place of a value from the bottom up."""
        assert self.y
        return self.bottom - self.y.share(value) * (self.bottom - self.top)

    def add(self, *parts: str) -> None:
        """Elements, drawn over those before."""
        self.parts += parts

    def svg(self, label: str) -> str:
        """The element; label: what it shows, for who does not see it."""
        body = "".join(self.parts)
        view = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        return f'<svg {view} role="img" aria-label="{escaped(label)}">{body}</svg>'

    def text(self, x: float, y: float, words: object, look: str) -> str:
        """A line of text."""
        return f'<text x="{number(x)}" y="{number(y)}" class="{look}">{escaped(words)}</text>'

    def line(self, x0: float, y0: float, x1: float, y1: float, look: str) -> str:
        """A straight line."""
        return f'<path class="{look}" d="M{number(x0)} {number(y0)}L{number(x1)} {number(y1)}"/>'

    def _x_axis(self) -> None:
        for tick in self.x.ticks:
            place = self.across(tick)
            self.add(self.line(place, self.top, place, self.bottom, "grid"))
            self.add(self.text(place, self.bottom + 18, tick_text(tick), "mid"))
        self.add(self.text((self.left + self.right) / 2, self.height - 8, self.x.label, "mid"))

    def _y_axis(self, y: Axis) -> None:
        for tick in y.ticks:
            place = self.up(tick)
            self.add(self.line(self.left, place, self.right, place, "grid"))
            self.add(self.text(self.left - 6, place + 4, tick_text(tick), "end"))
        middle = (self.top + self.bottom) / 2
        self.add(f'<text transform="translate(13 {number(middle)})rotate(-90)" class="mid">{escaped(y.label)}</text>')


def curves(plot: Plot, series: Sequence[Series]) -> None:
    """Draw lines with bands and marks; marks of values beyond the axis are arrows at its edge."""
    for one in sorted(series, key=lambda one: one.look != "o"):  # others below
        plot.add(f'<g class="{one.look}" data-e="{one.number}">', *_curve(plot, one), "</g>")


def _curve(plot: Plot, one: Series) -> list[str]:
    if one.flat:
        place, words = plot.up(one.points[0].y), escaped(one.points[0].words)
        line = plot.line(plot.left, place, plot.right, place, "l")
        return [line.replace("/>", f"><title>{words}</title></path>")]
    places = [(plot.across(point.x), plot.up(point.y)) for point in one.points]
    parts = [f'<path class="l" d="M{"L".join(f"{number(x)} {number(y)}" for x, y in places)}"/>'] if places[1:] else []
    if one.look.startswith("s") and places[1:]:
        high = [(x, plot.up(point.high)) for (x, _), point in zip(places, one.points, strict=True)]
        low = [(x, plot.up(point.low)) for (x, _), point in zip(places, one.points, strict=True)]
        outline = "L".join(f"{number(x)} {number(y)}" for x, y in [*high, *reversed(low)])
        parts.insert(0, f'<path class="a" d="M{outline}z"/>')
    for (x, y), point in zip(places, one.points, strict=True):
        parts.append(mark(_shape(plot, one, point), x, y, point.words))
    return parts


def _shape(plot: Plot, one: Series, point: Point) -> str:
    assert plot.y
    if point.y > plot.y.high or math.isnan(point.y):
        return "up"
    if point.y < plot.y.low:
        return "down"
    return f"m{one.look[1:]}" if one.look.startswith("s") else "dot"


def mark(shape: str, x: float, y: float, words: str) -> str:
    """A marker that says its value."""
    return f'<use href="#{shape}" x="{number(x)}" y="{number(y)}"><title>{escaped(words)}</title></use>'


def number(place: float) -> str:
    """A coordinate to a tenth of a unit."""
    return f"{place:.1f}".removesuffix(".0")


def tick_text(value: float) -> str:
    """ "0.1", "64", "1e6": a value at a tick."""
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    if value and not 1e-3 <= abs(value) < 1e4 and math.isclose(float(f"{value:.0e}"), value):
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.6g}"
