"""A run, read back."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import pandas as pd

from favorbench.engine.rows import Failed
from favorbench.engine.scenario import Scenario
from favorbench.engine.store import read_manifest, read_run, read_scenario
from favorbench.errors import ScenarioError
from favorbench.formats import shown
from favorbench.metrics import METRICS
from favorbench.registry import nearest, split_list
from favorbench.results.summary import STATS, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from favorbench.results.compare import RunComparison
    from favorbench.results.notebook import Several
    from favorbench.results.tables import Table


class Results(NamedTuple):
    """A run, read back; in a notebook it shows what its sweep says.

    path: the run directory. manifest: what was asked, with what, when, complete or not. trials: a DataFrame with a row
    for each measurement; summary: with one for each cell and estimator. set_aside: damaged parts, computed anew.
    failed: what failed, by estimator and message the draws; such draws have no rows of that estimator.

    ``table``, ``ranking``, ``plot`` and ``compare`` are what the commands of these names print and draw; all errors
    are relative to nothing but what the metric says: mse is in units of v^2, relative_error is a share of |exact|.
    """

    path: Path
    manifest: Mapping[str, object]
    scenario: Scenario
    trials: pd.DataFrame
    summary: pd.DataFrame
    set_aside: tuple[str, ...] = ()
    failed: Failed = {}  # noqa: RUF012

    def table(
        self,
        by: str | Sequence[str] | None = None,
        metric: str = "mse",
        stat: str = "median",
        over: Literal["heads"] | None = None,
        heads: str | None = None,
    ) -> "Table | Several":
        """A table of a metric over axes, the last of them as columns: ``by="map,sampler,R"``.

        Without axes one over the heads of each input that has two or more, and else one for each cell. stat: median,
        mean, std, q10, q90, min, max or n, over draws. over: "heads" for nothing but tables over heads, of errors over
        those of uniform attention. heads: these, each by itself, labels with commas. * marks what is worse than
        uniform attention. Raises ScenarioError for an axis, a metric, a statistic or a head that does not exist, with
        the nearest.

            results.table("map,R", metric="relative_error")
        """
        from favorbench.results import notebook, tables

        _check("metric", metric, METRICS)
        _check("stat", stat, STATS)
        if heads is not None:
            self = _of_heads(self, heads)
        if over is not None:
            _check("over", over, ["heads"])
            if by is not None or stat != "median":
                raise ScenarioError("`over` heads shows medians and quartiles of its own: leave `by` and `stat` out")
            if not (found := notebook.over_heads(self, metric)):
                raise ScenarioError(f"`over` heads: {self.path} has no input with two heads or more")
            return found
        if by is None:
            return notebook.tables_of(self, metric, stat, alone=heads is not None)
        axes = tables.parse_by(by if isinstance(by, str) else ",".join(by))
        return tables.pivoted(self, axes, metric, stat)

    def ranking(self, metric: str = "mse", heads: str | None = None) -> "Several":
        """Which estimators are better than which: groups by letters, each estimator at its largest size.

        Of two heads or more one ranking over all, else one for each cell. heads: these alone, labels with commas.
        Raises ScenarioError for a metric or a head that does not exist, with the nearest.
        """
        from favorbench.results import notebook

        _check("metric", metric, METRICS)
        chosen = self if heads is None else _of_heads(self, heads)
        return notebook.rankings_of(chosen, metric, heads is not None)

    def plot(
        self,
        figure: str,
        ax: "Axes | Sequence[Axes] | None" = None,
        metric: str = "mse",
        heads: str | None = None,
        inputs: str | None = None,
        samplers: str | None = None,
    ) -> "Axes":
        """Draw a figure of the run by its name; returns the Axes of its first panel, all are ``.figure.axes``.

        figure: "maps" (or "trig-vs-positive") and "samplers" (or "iid-vs-ortho") for error against R, "error-vs-L",
        "error-vs-d", "error-vs-scale", "error-vs-dtype", "error-vs-cost", "error-vs-seconds", "ranking", or what
        ``favorbench plot`` calls its file. ax: where to draw, as many Axes as there are panels, with a legend in the
        first; without, a figure of pyplot's, with legend and caption. heads, inputs, samplers: these alone, with
        commas: of one of each there is one panel in "maps".

        Raises ScenarioError for a name that there is not, with the nearest, for what the run has nothing to show of,
        and for another number of Axes than of panels.

            ax = results.plot("maps", heads="L0H1", samplers="orthogonal")
            ax.figure.savefig("maps.pdf")
        """
        from favorbench.results.figures import plot

        return plot(self, figure, ax, metric, heads, inputs, samplers)

    def compare(
        self,
        new: "Results | str | Path | None" = None,
        estimators: str | None = None,
        metric: str = "mse",
        factor: float = 1.05,
        alpha: float = 0.05,
    ) -> "RunComparison":
        """This run, as the old one, against another, or two estimators of it; as ``fb.compare``, but to be looked at.

        ``.frame()`` of what it returns is what ``fb.compare`` does. Raises what that does.
        """
        from favorbench.results.compare import comparison

        return comparison(self, new, estimators, metric, factor, alpha)

    def sentences(self) -> list[str]:
        """What the run says in plain words: over many heads first, then of each cell."""
        from favorbench.results.report import sentences

        return sentences(self)

    def _repr_html_(self) -> str:
        from favorbench.results.notebook import of_run

        return of_run(self)

    def __repr__(self) -> str:
        done, draws = self.manifest["draws_done"], self.manifest["draws"]
        return f"<Results of {self.scenario.name!r} in {self.path}: {done} of {draws} draws, {len(self.trials)} rows>"


def load(path: str | Path) -> Results:
    """Read a run directory: what a sweep wrote there, complete or not.

    Raises StoreError if it is no run, or is damaged.

    >>> import favorbench as fb
    >>> fb.sweep("quick", maps="positive", num_projections=[4, 16], seq_len=32, head_dim=4, trials=2, out="run")
    <Results of 'quick' in run: 2 of 2 draws, 18 rows>
    >>> fb.load("run").summary["map"].unique().tolist()
    ['uniform', 'taylor-1', 'taylor-2', 'best-rank', 'positive']
    """
    path = Path(path)
    (trials, failed), manifest = read_run(path), read_manifest(path)
    done = int(trials["draw"].nunique())  # a killed run had no time to count
    manifest |= {"draws_done": done, "complete": done == manifest["draws"]}
    return Results(path, manifest, read_scenario(path), trials, summarise(trials), failed=failed)


def _of_heads(results: Results, heads: str) -> Results:
    from favorbench.results.head_ranking import of_heads

    return of_heads(results, split_list(heads))


def _check(key: str, value: object, allowed: "Sequence[str] | Mapping[str, object]") -> None:
    """Raise ScenarioError for a name that is none of these."""
    if value not in list(allowed):
        raise ScenarioError(f"`{key}` {shown(value)}{nearest(str(value), allowed)}; allowed: {', '.join(allowed)}")
