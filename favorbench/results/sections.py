"""The tables and sentences that a run shows, chosen in this module only."""

from typing import NamedTuple

import pandas as pd

from favorbench.engine.columns import CELL
from favorbench.errors import ScenarioError
from favorbench.files import write_text
from favorbench.formats import heading, in_shell, printable
from favorbench.metrics import EFFECT
from favorbench.results import heads
from favorbench.results.findings import cell_sentences, run_sentences
from favorbench.results.ranking import Ranking, ranking_section, rankings, rankings_over_heads
from favorbench.results.summary import RunData
from favorbench.results.tables import cell_tables, input_sentences, rounded, size_axis, varying
from favorbench.sections import Section, Sections, dedupe_notes, to_markdown
from favorbench.statistics import fewest_draws

MAX_TABLES = 12  # at the end of a sweep


def tables(results: RunData, metric: str = "mse", stat: str = "median", alone: bool = False) -> Sections:
    """A table over the heads of each input that has several, and of every other cell; alone: of every cell.

    Where a statistic cannot be shown over heads, few heads are shown each by itself, and a note says which inputs have
    too many. Raises ScenarioError if all have.
    """
    over, few = [], results
    if not alone:
        over = heads.head_tables(results, metric) if stat == "median" and heads.can_be_compared(metric) else []
        few = heads.without_many(results, 1 if over else heads.FEW)
        over = [*(heads.effect_tables(results) if stat == "median" and metric in ("mse", EFFECT) else []), *over]
    left_out = []
    if not over and len(few.summary) < len(results.summary):
        many = results.summary.loc[results.summary.index.difference(few.summary.index), "input"].unique()
        text = (
            f"`stat` {stat} of `metric` {metric} is not shown over heads, and {results.path} has too many of "
            f"{', '.join(many)} to show all: name some with `heads` {heads.first_head(results)}, or show all with `by` "
            "head,estimator,R"
        )
        if few.summary.empty:
            raise ScenarioError(text)
        left_out = [Section(note=f"{text}.")]
    return dedupe_notes([*over, *(cell_tables(few, metric, stat) if len(few.summary) else []), *left_out])


def tables_over_heads(results: RunData, metric: str = "mse") -> Sections:
    """The tables over heads alone. Raises ScenarioError where no input has two heads."""
    if not (sections := heads.head_tables(results, metric)):
        raise ScenarioError(f"`over` heads: {results.path} has no input with two heads or more")
    return dedupe_notes(sections)


def ranking_sections(results: RunData, metric: str = "mse", alone: bool = False, most: int = 1) -> Sections:
    """A ranking over the heads of each input that has several, and of every cell of the others; alone: of every cell.

    most: the number of heads up to which each is ranked by itself, too.
    """
    over = [] if alone else rankings_over_heads(results, metric)
    cells = results if alone else heads.without_many(results, most)
    ranked = [*over, *(rankings(cells, metric) if len(cells.summary) else [])]
    return dedupe_notes(ranking_section(results, ranking, metric) for ranking in ranked)


def findings(results: RunData, most: int = 1) -> Section:
    """The sentences of a run; of inputs with more than ``most`` heads those over heads alone.

    Without those on inputs, which stand below every table beside them.
    """
    few, noted = heads.without_many(results, most), input_sentences(results)
    said = [*(sentence for sentence in run_sentences(results) if sentence not in noted), *cell_sentences(few)]
    if len(few.summary) < len(results.summary):
        words = in_shell(results.path), "--heads", in_shell(heads.first_head(results))
        said.append(f"Each head by itself: favorbench table {' '.join(words)}")
    return Section(sentences=said)


def run_sections(results: RunData, most: int = MAX_TABLES) -> Sections:
    """The output of a sweep at its end: tables, then findings."""
    shown = tables(results)
    more = Section(note=f"{len(shown) - most} more tables in {results.path}/summary.md")
    return Sections([*shown[:most], *([more] if len(shown) > most else []), findings(results)])


def summary_sections(results: RunData) -> Sections:
    """The content of summary.md: findings, tables over heads, rankings at equal features or cost, a table of each cell.

    Inputs with many heads have no tables of single heads.
    """
    few, scenario = heads.without_many(results, heads.FEW), results.scenario
    shown = [findings(results, heads.FEW), *dedupe_notes([*heads.effect_tables(results), *heads.head_tables(results)])]
    if scenario.budget != "projections":
        shown += ranking_sections(results, most=heads.FEW)
    return Sections([*shown, *dedupe_notes(cell_tables(few) if len(few.summary) else [])])


class PagePart(NamedTuple):
    """The part of a page about one cell, or one population of heads.

    axes: the values by which it can be chosen. closed: it is one of many, and shown on request.
    """

    title: str
    sections: list[Section]
    axes: dict[str, str]
    sentence: str = ""
    notes: tuple[str, ...] = ()
    closed: bool = False


#: Below a table of a page, where each size has its own draws.
_OWN_DRAWS = (
    "Each size has its own draws. Errors of estimators without a size are medians over the draws of all sizes; order, "
    "interval and what follows are of the draws at the largest size."
)


def page_parts(results: RunData) -> list[PagePart]:
    """The populations of heads, then the cells; single heads of a population are closed."""
    populations, cells = heads.populations(results), results.summary.drop_duplicates(list(CELL))
    together = [population.rows.iloc[[0]] for population in populations]
    effects = {heads.population_of(table.data.iloc[0]): table for table in heads.effect_tables(results)}
    axes = axes_of(pd.concat([*together, cells])[list(CELL)])
    parts, many = [], set()
    for population, chosen in zip(populations, axes, strict=False):
        key = heads.population_of(population.rows.iloc[0])
        shown = [*([effects[key]] if key in effects else []), *_by_size(results, population)]
        parts.append(PagePart(population.title, shown, chosen, notes=(heads.legend(results),)))
        many.add(key)
    found_cells = zip(cell_tables(results), rankings(results), cell_sentences(results), axes[len(parts) :], strict=True)
    for table, ranking, sentence, chosen in found_cells:
        single = heads.population_of(ranking.cell) in many
        section = ranking_section(results, ranking, "mse")
        merged = Section(table.title, _merged(table, ranking, section))
        notes = (section.note, _OWN_DRAWS) if results.scenario.redraw == "R" else (section.note,)
        parts.append(PagePart(ranking.title, [merged], chosen, sentence if single else "", notes, single))
    return parts


def _merged(table: Section, ranking: Ranking, section: Section) -> list[dict[str, str]]:
    """The values at each size in the order of the ranking, then the rest of the ranking.

    Groups and verdicts are left out where there are too few draws to tell any two apart.
    """
    values = {(row["estimator"], row["sampler"]): list(row.items())[2:] for row in table.rows}
    judged = ranking.draws >= min(ranking.draws_needed, fewest_draws(len(ranking.rows) - 1))
    hidden = {"mse"} if judged else {"mse", "groups", "against uniform"}
    return [
        {"estimator": text["estimator"], **dict(values[row.estimator, row.sampler or "-"]),
         **{name: value for name, value in list(text.items())[1:] if name not in hidden}}
        for row, text in zip(ranking.rows, section.rows, strict=True)
    ]  # fmt: skip


def _by_size(results: RunData, population: heads.Population) -> list[Section]:
    """A table for each size, the largest first and with the rows without a size; the best estimators first."""
    rows, axis = population.rows.sort_values("ratio_median", kind="stable"), size_axis(results)
    sizes = rows[axis].where(rows["num_projections"].notna())
    tables = []
    for size in sorted(set(sizes.dropna()), reverse=True) or [None]:
        chosen = rows[(sizes == size).fillna(False) | (sizes.isna() & (not tables))]
        at = "" if size is None else f", {heading(axis)} = {size}"
        tables.append(Section(f"{heads.title(population)}{at}", heads.rows_of(results, chosen)))
    return tables


def axes_of(cells: pd.DataFrame) -> list[dict[str, str]]:
    """For each cell its values of the axes that vary, as texts; axes that follow the length are left out."""
    axes = [axis for axis in varying(cells) if axis not in ("query_len", "query_rows")]
    texts = ({axis: row[axis] for axis in axes if not pd.isna(row[axis])} for _, row in cells.iterrows())
    return [
        {heading(axis): printable(f"{x:g}" if isinstance(x, float) else str(x)) for axis, x in row.items()}
        for row in texts
    ]


def write_summary(results: RunData) -> None:
    """Write summary.csv and summary.md next to the trials, and for several heads summary-heads.csv. Raises StoreError.

    The tables have six digits, and 0 for rounding: the rest differs from one machine to the next.
    """
    over_heads = heads.over_heads(results)
    tables = {"summary": rounded(results.summary, results.trials)}
    tables |= {"summary-heads": over_heads} if len(over_heads) else {}
    for name, frame in tables.items():
        write_text(results.path / f"{name}.csv", frame.to_csv(index=False, float_format="%.6g"))
    title = "\n\n".join(filter(None, [f"# {results.scenario.name}", results.scenario.title]))
    text = f"{title}\n\n{to_markdown(summary_sections(results), '## {}')}".replace("`", "")
    write_text(results.path / "summary.md", printable(text, but="\n"))
