"""How each estimator looks: the same in every figure of a page, and only so many as can be told apart."""

from collections.abc import Iterable

import pandas as pd

from favorbench.engine.columns import CELL
from favorbench.results.front import front
from favorbench.results.page.svg import MARKERS, Point, Series
from favorbench.results.summary import COMPARED, estimator_name, is_oracle


def names(rows: pd.DataFrame) -> list[str]:
    """The name of the estimator of each row."""
    pairs = zip(rows["map"], rows["sampler"], strict=True)
    return [estimator_name({"map": one, "sampler": sampler}) for one, sampler in pairs]


class Looks:
    """How each estimator looks, the same in every figure; those with a colour come nearest to the front of cost."""

    def __init__(self, rows: pd.DataFrame):
        """rows: of ``on_each_head``, of the whole run."""
        named = rows.assign(name=names(rows))
        self.numbers = {name: i for i, name in enumerate(["uniform", *dict.fromkeys(named["name"])])}
        self.labels: dict[str, tuple[str, str]] = {"uniform": ("uniform", "-")}
        for name, one, sampler in zip(named["name"], named["map"], named["sampler"], strict=True):
            self.labels[str(name)] = (str(one), "-" if pd.isna(sampler) else str(sampler))
        lines = named[named["kind"].isin(COMPARED)]
        coloured = _coloured(lines)
        others = [name for name in self.numbers if name != "uniform" and name not in set(lines["name"])]
        self.of = dict.fromkeys(self.numbers, "o") | {name: f"s{i}" for i, name in enumerate(coloured)}
        self.of |= {name: f"b{i % 4}" for i, name in enumerate(others)} | {"uniform": "u"}

    def series(self, name: str, points: Iterable[Point], flat: bool = False) -> Series:
        """A curve of one estimator."""
        return Series(self.numbers[name], self.of[name], tuple(points), flat)


def _coloured(lines: pd.DataFrame) -> list[str]:
    """The names of those on the front of cost in most cells and the best map first; all, where they are few."""
    names = list(dict.fromkeys(lines["name"]))
    if len(names) <= MARKERS:
        return names
    best = lines.groupby("name")["ratio"].median()  # over sizes and cells
    maps = [name for name in best.sort_values().index if name in set(lines.loc[lines["kind"] == "map", "name"])]
    costs = lines[(lines["multiplications"] > 0) & ~lines["map"].map(is_oracle).astype(bool)]
    groups = costs.groupby(list(CELL), sort=False, dropna=False)
    fronts = [set(group["name"].iloc[front(group["multiplications"], group["ratio"])]) for _, group in groups]
    often = {name: sum(name in found for found in fronts) for name in names}
    order = sorted(names, key=lambda name: (name not in maps[:1], -often[name], best[name]))[:MARKERS]
    return [name for name in names if name in order]
