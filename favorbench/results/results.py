"""A run, read back: its data, tables, rankings, figures and comparisons."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd

from favorbench.engine.store import read_manifest, read_run, read_scenario
from favorbench.errors import ScenarioError
from favorbench.results import sections as parts
from favorbench.results.compare import RunComparison, comparison
from favorbench.results.findings import sentences
from favorbench.results.heads import check_metric, check_name, first_head, not_measured, select_heads, where_measured
from favorbench.results.summary import STATS, RunData, summarise
from favorbench.results.tables import parse_by, pivoted
from favorbench.sections import Section, Sections, escape, to_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 6  # tables of a run that a notebook shows


class Results(RunData):
    """A run, read back. In a notebook it shows what its sweep prints.

    Errors have the unit of their metric: mse is in units of v^2, relative_error is a share of |exact|.

    Attributes
    ----------
    path : Path
        The run directory.
    manifest : dict
        The scenario, the versions and the machine, and whether the run is complete.
    scenario : Scenario
        The description of the sweep.
    trials : pandas.DataFrame
        A row for each measurement.
    summary : pandas.DataFrame
        A row for each cell and estimator.
    set_aside : tuple of str
        Damaged parts; their draws are computed again.
    failed : dict
        For each estimator that failed, by message, the draws. They have no rows of that estimator.
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
        """Show a metric in tables; * marks values that are worse than uniform attention.

        Parameters
        ----------
        by : str or sequence of str, optional
            Axes, the last as columns, e.g. "estimator,sampler,R". Without them there is a table over the heads of each
            input that has two or more, and else one for each cell.
        metric : str
            The metric.
        stat : str
            median, mean, std (divided by n, not n - 1), q10, q90, min, max or n, over draws.
        over : {"heads"}, optional
            Only tables over heads, of errors over those of uniform attention.
        heads : str, optional
            These heads, each by itself; labels with commas.

        Returns
        -------
        Section or Sections
            One table with axes, else several.

        Raises
        ------
        ScenarioError
            For an unknown axis, metric, statistic or head, with the nearest name.

        Examples
        --------
        ``results.table("estimator,R", metric="relative_error")``
        """
        check_name("stat", stat, STATS)
        chosen = select_heads(self, heads)
        check_metric(chosen, metric)
        measured, missing = where_measured(chosen, metric), not_measured(chosen, metric)
        if over is not None:
            check_name("over", over, ["heads"])
            if by is not None or stat != "median":
                raise ScenarioError("`over` heads shows medians and quartiles of its own: leave `by` and `stat` out")
            return Sections([*parts.tables_over_heads(measured, metric), *missing])
        if by is None:
            return Sections([*parts.tables(measured, metric, stat, alone=heads is not None), *missing])
        table = pivoted(measured, parse_by(by if isinstance(by, str) else ",".join(by)), metric, stat)
        return replace(table, note=" ".join(section.note for section in (table, *missing)))

    def ranking(self, metric: str = "mse", heads: str | None = None) -> Sections:
        """Rank the estimators, each at its largest size, in groups without a detectable difference.

        Parameters
        ----------
        metric : str
            The metric.
        heads : str, optional
            These heads, each by itself; labels with commas.

        Returns
        -------
        Sections
            A ranking over the heads of each input that has two or more, and else one for each cell.

        Raises
        ------
        ScenarioError
            For an unknown metric or head, with the nearest name; and for a partial run with too few draws.
        """
        chosen = select_heads(self, heads)
        check_metric(chosen, metric)
        ranked = parts.ranking_sections(where_measured(chosen, metric), metric, heads is not None)
        if not ranked:
            raise ScenarioError(
                f"{self.path} has no two heads with draws at their largest size yet: rank one with "
                f"`heads` {first_head(self)}, or resume the run"
            )
        return Sections([*ranked, *not_measured(chosen, metric)])

    def plot(
        self,
        figure: str,
        ax: "Axes | Sequence[Axes] | None" = None,
        metric: str = "mse",
        heads: str | None = None,
        inputs: str | None = None,
        samplers: str | None = None,
    ) -> "Axes":
        """Draw a figure of the run.

        Parameters
        ----------
        figure : str
            "maps" (or "trig-vs-positive") and "samplers" (or "iid-vs-ortho") for error against R, "error-vs-L",
            "error-vs-d", "error-vs-scale", "error-vs-dtype", "error-vs-cost", "error-vs-seconds", "ranking", or the
            name of a file of ``favorbench plot``.
        ax : Axes or sequence of Axes, optional
            As many as there are panels; the first gets a legend. By default a new figure of pyplot, with legend and
            caption.
        metric : str
            The metric.
        heads, inputs, samplers : str, optional
            Only these; names with commas. With one of each "maps" has one panel.

        Returns
        -------
        Axes
            Those of the first panel; all are ``.figure.axes``.

        Raises
        ------
        ScenarioError
            For an unknown name, with the nearest; for a figure that the run has no data for; and for another number of
            Axes than of panels.

        Examples
        --------
        ``results.plot("maps", heads="L0H1", samplers="orthogonal").figure.savefig("maps.pdf")``
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

        The parameters and errors are those of ``fb.compare``, which returns the ``.frame()`` of this comparison.
        """
        return comparison(self, new if new is None else _loaded(new), estimators, metric, factor, alpha)

    def sentences(self) -> list[str]:
        """List the findings in plain words: over many heads first, then for each cell."""
        return sentences(self)

    def _repr_html_(self) -> str:
        api = f"{self!r}; .trials and .summary are DataFrames; .table() .ranking() .plot()"
        html = to_html(parts.run_sections(self, MOST)).replace(f"{self.path}/summary.md", ".table()")
        return f'{html}<p style="opacity:0.75">{escape(api)}</p>\n'

    def __repr__(self) -> str:
        done, draws = self.manifest["draws_done"], self.manifest["draws"]
        return f"<Results of {self.scenario.name!r} in {self.path}: {done} of {draws} draws, {len(self.trials)} rows>"


def load(path: str | Path) -> Results:
    """Read a run directory, complete or not.

    Parameters
    ----------
    path : str or Path
        The directory that a sweep wrote.

    Returns
    -------
    Results
        The run.

    Raises
    ------
    StoreError
        If it is not a run, or is damaged.

    Examples
    --------
    >>> import favorbench as fb
    >>> fb.sweep("quick", maps="positive", num_projections=[4, 16], seq_len=32, head_dim=4, trials=2, out="run")
    <Results of 'quick' in run: 2 of 2 draws, 18 rows>
    >>> fb.load("run").summary["estimator"].unique().tolist()
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

    Parameters
    ----------
    old, new : str, Path or Results
        The runs; ``new`` may be left out with ``estimators``.
    estimators : str, optional
        "positive orthogonal,clusters": the first of ``old`` against the second of ``new``, or of ``old``.
    metric : str
        An error on a ratio scale.
    factor : float
        A change of the median error below this factor is not a change.
    alpha : float
        The probability of any false alarm, over all rows.

    Returns
    -------
    pandas.DataFrame
        Columns: mark (+ worse, - better, ~ no detectable difference, = the same, x not comparable), verdict, reason,
        the cell, both estimators, the size, the medians old and new, ratio with low, high and coverage of its interval,
        pairs of draws, p_value.

    Raises
    ------
    StoreError
        For a path that is not a run, or is of another format.
    ScenarioError
        For a metric that is not an error, numbers out of range, an unknown estimator, and if nothing can be compared.

    Examples
    --------
    >>> import favorbench as fb
    >>> scenario = {"maps": "positive", "num_projections": 8, "seq_len": 32, "head_dim": 4, "baselines": "uniform"}
    >>> old = fb.sweep(scenario, "one", trials=3)
    >>> new = fb.sweep(scenario, "two", trials=3)
    >>> fb.compare(old, new)["mark"].unique().tolist()
    ['=']
    """
    return _loaded(old).compare(new, estimators, metric, factor, alpha).frame()
