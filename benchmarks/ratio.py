"""Ratios of interleaved measurements, each with its target."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """A ratio over several runs and its target, a lower bound, or an upper bound if ``most`` is set."""

    name: str
    values: list[float]
    target: float
    most: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def share(self) -> float:
        """The share of the target that is reached; 1 or more meets it."""
        return self.target / self.median if self.most else self.median / self.target

    def __str__(self) -> str:
        return f"{self.name}: {spread(self.values)} (target {self.target_in_words()}: {self.verdict()})"

    def row(self) -> str:
        """The same as a row of the table in README.md."""
        return f"| {self.name} | {spread(self.values)} | {self.target_in_words()} | {self.verdict()} |"

    def target_in_words(self) -> str:
        return f"{'at most' if self.most else 'at least'} {self.target:g}"

    def verdict(self) -> str:
        if self.share() >= 1:
            return "met"
        return f"missed by {100 * abs(self.median / self.target - 1):.0f} %"


def spread(values: list[float]) -> str:
    return f"{min(values):.3g} / {statistics.median(values):.3g} / {max(values):.3g}"


def seconds_of_call(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
