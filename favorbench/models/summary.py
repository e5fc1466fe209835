"""What the measurements of a model come to: one line for each estimator and size, and one sentence."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.formats import plain
from favorbench.models.plan import ALL, BFLOAT16
from favorbench.models.seconds import with_seconds
from favorbench.models.store import read_manifest, read_measurements
from favorbench.statistics import median_interval

LINE = ["layers", "kind", "estimator", "sampler", "size"]
COMPARED = ("map", "method")
UNIFORM, REMOVED = "uniform", "removed"


class Measure(NamedTuple):
    """How an effect is called: of a language model nats, of an encoder the cosine that is lost."""

    column: str
    heading: str
    #: The one that figures show on a log axis: never below 0.
    positive: str
    axis: str


LANGUAGE = Measure("delta_nll", "nats", "kl", "KL(exact || replaced), nats per token")
ENCODER = Measure("embedding_loss", "1 - cos", "embedding_loss", "1 - cosine of the embedding")


class Study(NamedTuple):
    """A study read from its directory. lines: one for each estimator, size and set of layers."""

    path: Path
    manifest: dict[str, Any]
    rows: pd.DataFrame
    lines: pd.DataFrame

    @property
    def measure(self) -> Measure:
        return measure_of(self.rows)

    @property
    def texts(self) -> int:
        """How many are measured."""
        return int(self.rows["text"].nunique())

    @property
    def uneven(self) -> bool:
        """Whether some lines have fewer texts than others: a study that grew, or is not complete."""
        return self.lines["texts"].nunique() > 1

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return plain({
            "manifest": self.manifest, "lines": self.lines.to_dict("records"), "sentence": sentence(self.rows)
        })  # fmt: skip


def read(path: Path) -> Study:
    """The study in a directory. Raises StoreError."""
    rows = read_measurements(path)
    return Study(path, read_manifest(path), rows, with_seconds(lines_of(rows), path))


def measure_of(rows: pd.DataFrame) -> Measure:
    """What the effect on this model is measured in."""
    return ENCODER if rows["delta_nll"].isna().all() else LANGUAGE


def lines_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The table. Effects: median over texts of the mean over draws; low, high: interval of that median, or the
    smallest and largest of fewer than 6 texts; worst: the largest over texts. distance, worst_distance: the same of the
    measure that is never below 0. worse: by that distance than uniform attention in the same layers, median of the
    paired differences. rank: Spearman correlation of the similarities of all pairs of texts with
    the exact ones. head_median, head_q90, head_max: of the relative errors of single heads under exact inputs;
    head_after_projection: of layers, |W_O error| / |h|.
    """
    column = measure_of(rows).column
    found = pd.DataFrame(list(_lines(rows, column)))
    order = {"exact": 0, "trivial": 1, "map": 2, "method": 3, "oracle": 4}
    key = found["kind"].map(order)
    found = found.assign(order=key).sort_values(["order"], kind="stable").drop(columns="order")
    return found.sort_values("layers", key=lambda s: s.map(_layer_order), kind="stable").reset_index(drop=True)


def _layer_order(layers: str) -> float:
    return -1.0 if layers == ALL else float(layers.split(",")[0]) + 1000.0 * layers.count(",")


def _lines(rows: pd.DataFrame, column: str) -> Iterator[dict[str, Any]]:
    similarity, distance = _similarities(rows), measure_of(rows).positive
    uniform = rows[rows["estimator"] == UNIFORM].set_index(["layers", "text"])[distance]
    for key, group in rows.groupby(LINE, sort=False):
        names = dict(zip(LINE, key, strict=True))
        by_text = group.groupby("text").mean(numeric_only=True)
        effects = by_text[column].to_numpy()
        interval = median_interval(effects)
        trivial = uniform.reindex([(names["layers"], text) for text in by_text.index]).to_numpy()
        with np.errstate(invalid="ignore"):
            worse = names["kind"] in COMPARED and float(np.nanmedian(by_text[distance] - trivial)) > 0
        errors = np.concatenate(
            [np.asarray(one, dtype=float) for one in group["head_error"] if one is not None] or [[]]
        )
        quantiles = [float(np.quantile(errors, q)) for q in (0.5, 0.9, 1.0)] if len(errors) else [np.nan] * 3
        last = pd.Series([one[-1] for one in group["hidden_error"]], index=group.index)
        medians = {name: float(by_text[name].median()) for name in _SECOND}
        yield {
            **names, "texts": len(by_text), "draws": int(group["draw"].nunique()),
            "cost": float((by_text["multiplications"] / by_text["exact_multiplications"]).median()),
            "effect": float(np.median(effects)), "low": interval.low, "high": interval.high,
            "worst": float(np.max(effects)), "worse": worse, "distance": float(by_text[distance].median()),
            "worst_distance": float(by_text[distance].max()), **medians,
            "last_hidden_error": float(last.groupby(group["text"]).mean().median()),
            "rank": _rank(group, similarity),
            **dict(zip(("head_median", "head_q90", "head_max"), quantiles, strict=True)),
            "head_after_projection": _after_projection(group),
        }  # fmt: skip


def _after_projection(group: pd.DataFrame) -> float:
    """|W_O error| / |h| of whole layers, root of the sum of squares over their heads: median over layers and rows."""
    found = []
    for layer, after in group[["head_layer", "head_after_projection"]].itertuples(index=False):
        if layer is not None and len(layer):
            squares = pd.Series(np.asarray(after, dtype=float) ** 2).groupby(np.asarray(layer))
            found += [*squares.sum(min_count=1) ** 0.5]
    return float(np.median(found)) if found else np.nan


_SECOND = ("embedding_loss", "kl", "delta_nll", "top1", "late_kl", "late_delta_nll", "nonfinite")


def _similarities(rows: pd.DataFrame) -> pd.Series | None:
    """Of the model as it is: cosines of all pairs of texts; None of fewer than 3 texts."""
    exact = rows[(rows["estimator"] == "exact") & (rows["layers"] == ALL)].set_index("text")["embedding"]
    return _cosines(exact) if len(exact) >= 3 else None


def _cosines(embeddings: pd.Series) -> pd.Series:
    matrix = np.stack([np.asarray(one) for one in embeddings.sort_index()])
    matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return pd.Series((matrix @ matrix.T)[np.triu_indices(len(matrix), 1)])


def _rank(group: pd.DataFrame, exact: pd.Series | None) -> float:
    """Spearman's correlation, the mean over draws; nan where not all texts are there."""
    found = []
    for _, draw in group.groupby("draw"):
        if exact is None or len(draw) * (len(draw) - 1) // 2 != len(exact):
            return np.nan
        found.append(exact.rank().corr(_cosines(draw.set_index("text")["embedding"]).rank()))
    return float(np.mean(found))


def sentence(rows: pd.DataFrame) -> str:
    """What all of it comes to, with the number of texts and draws, of what costs less than exact attention if anything
    does; where a study has grown unevenly, of the estimators that have most texts. Best and unnoticed by the distance
    that is never below 0, KL for a language model: unnoticed is what moves no text further than bfloat16 moves the one
    that it moves furthest; of a study without bfloat16, which is not complete, nothing is said about that."""
    measure, lines = measure_of(rows), lines_of(rows)
    lines = lines[lines["layers"] == lines["layers"].iloc[0]]
    compared = lines[lines["kind"].isin(COMPARED)]
    if compared.empty:
        return ""
    compared = compared[compared["texts"] == compared["texts"].max()]
    cheaper = compared[compared["cost"] < 1]
    asked, of_what = (cheaper, "cheaper") if len(cheaper) else (compared, "none of them cheaper")
    best = asked.loc[asked["distance"].idxmin()]
    halved = lines[lines["estimator"].isin([BFLOAT16, "exact, attention in bfloat16"])]
    counted = f"{_count(len(asked), 'setting')} ({of_what} than exact attention)"
    if halved.empty:
        said, beside = counted, ""
    else:
        unnoticed = int((asked["worst_distance"] <= float(halved["worst_distance"].max())).sum())
        said = f"{unnoticed or 'none'} of {counted} replace{'s' if unnoticed < 2 else ''} attention unnoticed"
        beside = f"bfloat16 {_costs(halved['effect'].max(), measure)} and "
    return (
        f"{_where(best, rows)}: {said}: the best, {described(best)}, at {best['cost']:.2f} of its multiplications, "
        f"{_costs(best['effect'], measure)} (worst text {_value(best['worst'], measure)}), where {beside}uniform "
        f"attention {_costs(lines[lines['estimator'] == UNIFORM].iloc[0]['effect'], measure)}"
    )


def _where(line: pd.Series, rows: pd.DataFrame) -> str:
    lengths = sorted({*rows["seq_len"]})
    tokens = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    texts, draws = _count(line["texts"], "text"), _count(line["draws"], "draw")
    return f"{which_layers(line['layers'])}, {texts} of {tokens} tokens, {draws}"


def which_layers(layers: str) -> str:
    """ "all layers", "layer 3", "layers 0,3"."""
    return "all layers" if layers == ALL else f"layer{'s' if ',' in layers else ''} {layers}"


def described(line: Mapping[str, Any] | pd.Series) -> str:
    """An estimator with its size, as sentences and legends have it."""
    size = "" if not line["size"] else f", {'R' if line['kind'] == 'map' else 'm'} = {line['size']}"
    sampler = "" if line["sampler"] in ("-", "orthogonal") else f", {line['sampler']}"
    return f"{line['estimator']}{sampler}{size}"


def _costs(value: float, measure: Measure) -> str:
    if measure is ENCODER:
        return f"leaves embeddings at cosine {_value(value, measure)}"
    return f"costs {_value(value, measure)} nats a token"


def _value(value: float, measure: Measure) -> str:
    return f"{1.0 - value:.5f}" if measure is ENCODER else f"{value:.3f}"


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"
