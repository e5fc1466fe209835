"""A run, read back: its data, and everything that can be shown of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd

from favorbench.engine.store import read_manifest, read_run, read_scenario
from favorbench.errors import ScenarioError
from favorbench.metrics import METRICS
from favorbench.results import sections as parts
from favorbench.results.compare import RunComparison, comparison
from favorbench.results.findings import sentences
from favorbench.results.heads import check_name, select_heads
from favorbench.results.summary import STATS, RunData, summarise
from favorbench.results.tables import parse_by, pivoted
from favorbench.sections import Section, Sections, escape, to_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 6  # tables of a run that a notebook shows


class Results(RunData):
    """A run, read back; in a notebook it shows what its sweep prints.

    path: the run directory. manifest: what was asked, with what, when, complete or not. trials: a DataFrame with a row
    for each measurement; summary: with one for each cell and estimator. set_aside: damaged parts, computed anew.
    failed: what failed, by estimator and message the draws; such draws have no rows of that estimator.

    ``table``, ``ranking``, ``plot`` and ``compare`` are what the commands of these names print and draw. Errors are in
    the unit that the metric says: mse is in units of v^2, relative_error is a share of |exact|.
    """

    __slots__ = ()

    def table(
        self,
        by: str | Sequence[str] | None = None,
        metric: str = "mse",
        stat: str = "median",
        over: Literal["heads"] | None = None,
        heads: str | None = None,
    ) -> Section | Sections:
        """A table of a metric over axes, the last of them as columns: ``by="map,sampler,R"``.

        Without axes one over the heads of each input that has two or more, and else one for each cell. stat: median,
        mean, std, q10, q90, min, max or n, over draws. over: "heads" for nothing but tables over heads, of errors over
        those of uniform attention. heads: these, each by itself, labels with commas. * marks what is worse than
        uniform attention. Raises ScenarioError for an axis, a metric, a statistic or a head that does not exist, with
        the nearest.

            results.table("map,R", metric="relative_error")
        """
        check_name("metric", metric, METRICS)
        check_name("stat", stat, STATS)
        chosen = self if heads is None else select_heads(self, heads)
        if over is not None:
            check_name("over", over, ["heads"])
            if by is not None or stat != "median":
                raise ScenarioError("`over` heads shows medians and quartiles of its own: leave `by` and `stat` out")
            return parts.tables_over_heads(chosen, metric)
        if by is None:
            return parts.tables(chosen, metric, stat, alone=heads is not None)
        return pivoted(chosen, parse_by(by if isinstance(by, str) else ",".join(by)), metric, stat)

    def ranking(self, metric: str = "mse", heads: str | None = None) -> Sections:
        """Which estimators are better than which: groups by letters, each estimator at its largest size.

        Of two heads or more one ranking over all, else one for each cell. heads: these alone, labels with commas.
        Raises ScenarioError for a metric or a head that does not exist, with the nearest.
        """
        check_name("metric", metric, METRICS)
        chosen = self if heads is None else select_heads(self, heads)
        return parts.ranking_sections(chosen, metric, heads is not None)

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
    ) -> RunComparison:
        """Compare this run, as the old one, with another, or two of its estimators.

        ``.frame()`` of what it returns is what ``fb.compare`` returns. Raises what that does.
        """
        return comparison(self, new if new is None else _loaded(new), estimators, metric, factor, alpha)

    def sentences(self) -> list[str]:
        """What the run says in plain words: over many heads first, then for each cell."""
        return sentences(self)

    def _repr_html_(self) -> str:
        api = f"{self!r}; .trials and .summary are DataFrames; .table() .ranking() .plot()"
        found = to_html(parts.run_sections(self, MOST)).replace(f"{self.path}/summary.md", ".table()")
        return f'{found}<p style="opacity:0.75">{escape(api)}</p>\n'

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


def _loaded(run: Results | str | Path) -> Results:
    return run if isinstance(run, Results) else load(run)


def compare(
    old: str | Path | Results,
    new: str | Path | Results | None = None,
    estimators: str | None = None,
    metric: str = "mse",
    factor: float = 1.05,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare two runs, or two estimators of one run, row by row.

    Columns: mark (+ worse, - better, ~ no detectable difference, = the same, x not comparable), verdict, reason, the
    cell, both estimators, the size, the medians old and new, ratio with low, high and coverage of its interval, n_old,
    n_new, pairs, p_value. Raises StoreError for what is not a run, or is of another format, and ScenarioError for a
    metric that is not an error, numbers out of range, an unknown estimator, and where nothing can be compared.

    >>> import favorbench as fb
    >>> asked = {"maps": "positive", "num_projections": 8, "seq_len": 32, "head_dim": 4, "baselines": "uniform"}
    >>> one = fb.sweep(asked, "one", trials=3)
    >>> two = fb.sweep(asked, "two", trials=3)
    >>> fb.compare(one, two)["mark"].unique().tolist()
    ['=']
    """
    return _loaded(old).compare(new, estimators, metric, factor, alpha).frame()
