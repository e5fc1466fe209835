"""What the errors of a layer's heads under exact inputs say of the effect of replacing that layer."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from favorbench.models.plan import ALL
from favorbench.models.summary import COMPARED, Study

_KEY = ["text", "estimator", "sampler", "size", "draw"]


class Predictions(NamedTuple):
    """points: for each layer replaced alone, text, estimator, size and draw, the relative error of its heads (median),
    |W_O error| / |h| (root of the sum of squares over heads) and the effect. Spearman's correlations of the two with
    the effect, over all points."""

    points: pd.DataFrame
    of_relative_error: float
    of_projected_error: float

    @property
    def sentence(self) -> str:
        """Both correlations, of those that there are, and of how many points."""
        each = {
            "|W_O error| / |h|": self.of_projected_error, "the relative error of its heads": self.of_relative_error
        }  # fmt: skip
        told = [f"with {name} (Spearman {value:.2f})" for name, value in each.items() if not np.isnan(value)]
        over = f"over {len(self.points)} points (layer, text, estimator, size, draw)"
        return f"the effect of a layer replaced alone goes {' and '.join(told)}, {over}" if told else ""


def predictions(study: Study) -> Predictions | None:
    """None where fewer than two layers were replaced alone, or heads were not measured."""
    points = _points(study)
    if points["layer"].nunique() < 2:
        return None
    ranks = points["effect"].rank()
    relative, projected = (float(points[name].rank().corr(ranks)) for name in ("head_error", "head_after_projection"))
    return Predictions(points, relative, projected)


def _points(study: Study) -> pd.DataFrame:
    """Of each layer that is replaced alone somewhere: its heads' errors, measured where all are, and the effect."""
    rows = study.rows[study.rows["kind"].isin(COMPARED)]
    whole = rows[(rows["layers"] == ALL) & rows["head_error"].notna()].set_index(_KEY)
    single = rows[rows["layers"].str.fullmatch(r"\d+")]
    found = list(_matched(whole, single, study.measure.positive))
    return pd.DataFrame(found, columns=[*_KEY, "kind", "layer", "head_error", "head_after_projection", "effect"])


def _matched(whole: pd.DataFrame, single: pd.DataFrame, column: str) -> Iterator[tuple[object, ...]]:
    for _, row in single.iterrows():
        at = tuple(row[name] for name in _KEY)
        if at not in whole.index:
            continue
        one = whole.loc[[at]].iloc[0]
        own = np.asarray(one["head_layer"]) == int(row["layers"])
        after = np.asarray(one["head_after_projection"], dtype=float)[own]
        error = float(np.median(np.asarray(one["head_error"], dtype=float)[own]))
        yield (*at, row["kind"], int(row["layers"]), error, float(np.sqrt(np.sum(after**2))), row[column])
