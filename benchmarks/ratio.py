"""What is measured here: ratios of things done in turns in one run, each with its target."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """A ratio over several runs and what it should be: at least the target, or at most where ``most`` is set."""

    name: str
    values: list[float]
    target: float
    most: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def share(self) -> float:
        """How much of the target is reached: 1 and more is enough."""
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
