"""error-vs-cost: the error of each estimator against its multiplications."""

from pathlib import Path

import pandas as pd

from favorbench.engine.columns import Labels
from favorbench.results.figures.pareto import COSTS, Cost, draw_against
from favorbench.results.heads import FEW, populations
from favorbench.results.results import Results


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure where there is a method, equal cost or many heads, and two estimators have two costs."""
    usual = results.scenario.budget == "cost" or (results.summary["kind"] == "method").any()
    if not usual and not any(one.heads > FEW for one in populations(results)):
        return []
    return draw_against(MULTIPLICATIONS, results, metric, directory)


def _exact(row: Labels) -> float | None:
    """n l (d + d_v) multiplications where d_v = d; causal, it depends on the program."""
    n, length, d = (float(str(row[name])) for name in ("query_len", "seq_len", "head_dim"))
    return None if row["causal"] == "yes" else 2.0 * n * length * d


MULTIPLICATIONS = Cost(
    name="error-vs-cost",
    axis="multiplications",
    of=lambda rows: pd.DataFrame(dict.fromkeys(COSTS, rows["multiplications"])),
    exact=_exact,
    exact_name="exact (d_v = d)",
    what="the multiplications of matrix products for one head (uniform attention has none)",
    unknown="they do not say what they cost",
)
