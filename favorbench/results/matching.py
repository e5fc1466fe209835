"""Which rows of two runs are the same, and on which draws: keys of rows, and their errors by draw."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL
from favorbench.results.run import RunData

#: Where rows differ in these alone they are the same row on another problem, and not comparable.
_PROBLEM = {"query_len": "query rows", "query_rows": "measured rows", "seq_len": "L", "head_dim": "d", "dtype": "dtype"}


#: An error for each draw: its trial, and which of that trial's draws it is.
Draws = dict[tuple[int, int], float]


class Key(NamedTuple):
    """What makes two rows the same: the cell, the estimator ("" where two of them are compared), its size."""

    cell: tuple[Any, ...]
    estimator: str
    size: int | None

    @property
    def loosely(self) -> tuple[Any, ...]:
        """The key without the problem's shape and precision."""
        names = (value for name, value in zip(CELL, self.cell, strict=True) if name not in _PROBLEM)
        return (*names, self.estimator, self.size)


def measured(run: RunData, axis: str, metric: str, name: str | None) -> dict[Key, Draws]:
    """The errors of each row, by draw: all rows of a run, or those of one estimator without its name."""
    trials = run.trials.assign(
        estimator=run.trials["map"].where(
            run.trials["sampler"].isna(), run.trials["map"] + " / " + run.trials["sampler"].fillna("")
        )
    )
    if axis != "num_projections":  # what has no R is of no size, whatever it was asked for
        trials[axis] = trials[axis].astype("Int64").where(trials["num_projections"].notna())
    if name is not None:
        trials = trials[trials["estimator"] == name].assign(estimator="")
    by = [*CELL, "estimator", axis]
    trials = trials.drop_duplicates(["draw", *by])  # two budgets may come to one size
    nth = trials.groupby([*by, "trial"], dropna=False).cumcount()  # of the draws of a trial: there is one for each R
    number = trials.groupby(by, sort=False, dropna=False).ngroup().to_numpy()
    first = np.unique(number, return_index=True)[1]
    keys = [
        Key(tuple(cell), str(estimator), None if pd.isna(size) else int(size))
        for *cell, estimator, size in trials[by].iloc[first].itertuples(index=False)
    ]
    found: dict[Key, Draws] = {key: {} for key in keys}
    for i, trial, which, value in zip(number, trials["trial"], nth, trials[metric], strict=True):
        found[keys[i]][trial, which] = value
    return found


def at_all_sizes(ours: dict[Key, Draws], theirs: dict[Key, Draws]) -> dict[Key, Draws]:
    """An estimator without a size stands beside the other at every size; only where two estimators are compared."""
    found = {}
    sizes: dict[tuple[Any, ...], list[int | None]] = {}
    for key in theirs:
        if key.estimator == "":
            sizes.setdefault(key.cell, []).append(key.size)
    for key, values in ours.items():
        alone = key.size is None and key.estimator == ""
        for size in sizes.get(key.cell, [None]) if alone else [key.size]:
            found[key._replace(size=size)] = values
    return found


def same_draws(old: RunData, new: RunData) -> bool:
    """Whether draw i of a cell is the same realisation in both."""
    a, b = old.scenario, new.scenario
    return a.seed == b.seed and a.redraw == b.redraw and (a.redraw != "R" or a.num_projections == b.num_projections)


def on_other_problems(lost: list[Key], added: list[Key]) -> dict[Key, str]:
    """Rows of the old run that the new one has on another problem: in what the two differ."""
    others: dict[tuple[Any, ...], Key] = {}
    for key in added:
        others.setdefault(key.loosely, key)
    found = {}
    for key in lost:
        other = others.get(key.loosely)
        if other is not None:
            pairs = zip(CELL, key.cell, other.cell, strict=True)
            differing = [f"{_PROBLEM[name]} {a} / {b}" for name, a, b in pairs if a != b]
            found[key] = f"other {', '.join(differing)}"
    return found
