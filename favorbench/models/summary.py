"""The measurements of a model summarised: a line for each estimator and size, tables, sentences, and predictors."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.formats import counted, plain
from favorbench.models.plan import ALL, BFLOAT16
from favorbench.models.predicted import with_predictions
from favorbench.models.seconds import conditions, with_seconds
from favorbench.models.store import read_manifest, read_measurements
from favorbench.sections import Section, Sections
from favorbench.statistics import bounded, fewest_draws, interval_name, median_interval, unbounded

LINE = ["layers", "kind", "estimator", "sampler", "size"]
KINDS = ("exact", "trivial", "map", "method", "oracle")
COMPARED = ("map", "method")
UNIFORM, REMOVED = "uniform", "removed"

#: Columns whose median over texts is shown.
_MEDIANS = ["embedding_loss", "kl", "delta_nll", "top1", "late_kl", "late_delta_nll", "nonfinite"]


class Measure(NamedTuple):
    """The unit of an effect: nats for a language model, loss of cosine for an encoder, KL for other predictions.

    positive, axis: the measure that is never below 0, for figures on a log axis, and its label.
    """

    column: str
    heading: str
    positive: str
    axis: str


LANGUAGE = Measure("delta_nll", "nats", "kl", "KL(exact || replaced), nats per token")
PREDICTION = Measure("kl", "KL", "kl", "KL(exact || replaced), nats")  # of logits of inputs that are no tokens
ENCODER = Measure("embedding_loss", "1 - cos", "embedding_loss", "1 - cosine of the embedding")


class ModelResults(NamedTuple):
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
        """The number of texts."""
        return int(self.rows["text"].nunique())

    @property
    def uneven(self) -> bool:
        """Whether some lines have fewer texts than others: the study has grown, or is not complete."""
        return self.lines["texts"].nunique() > 1

    @property
    def counted_texts(self) -> str:
        """ "3 texts", or "up to 3 texts"."""
        return f"{'up to ' * self.uneven}{counted(self.texts, 'text')}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        lines = self.lines.to_dict("records")
        return plain({"manifest": self.manifest, "lines": lines, "sentence": sentence(self.rows)})


def read(path: Path) -> ModelResults:
    """The study in a directory. Raises StoreError."""
    rows = read_measurements(path)
    lines = with_predictions(with_seconds(lines_of(rows), path), rows, path)
    return ModelResults(path, read_manifest(path), rows, lines)


def measure_of(rows: pd.DataFrame) -> Measure:
    """The measure of effects on this model."""
    if rows["delta_nll"].notna().any():
        return LANGUAGE
    return PREDICTION if rows["kl"].notna().any() else ENCODER


def lines_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Summarise rows: one line for each estimator, size and set of layers.

    effect: median over texts of the mean over draws. low, high: its interval, or the smallest and largest of fewer than
    6 texts. worst: the largest over texts. distance, worst_distance: the median and the largest of the measure that is
    never below 0. worse: whether the paired differences of that distance to uniform attention in the same layers have a
    median above 0. rank: Spearman's correlation of the similarities of all pairs of texts with the exact ones.
    head_median, head_q90, head_max: of the relative errors of single heads under exact inputs. head_after_projection:
    |W_O error| / |h| of a layer, the root of the sum of squares over its heads; median over layers and rows.
    """
    lines = pd.DataFrame(list(_lines(rows)))
    layers = [-1 if s == ALL else int(s.split(",")[0]) + 1000 * s.count(",") for s in lines["layers"]]
    order = np.lexsort(([KINDS.index(kind) for kind in lines["kind"]], layers))
    return lines.iloc[order].reset_index(drop=True)


def _lines(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    measure, heads = measure_of(rows), _by_head(rows)
    exact = rows[(rows["estimator"] == "exact") & (rows["layers"] == ALL)]
    uniform = rows[rows["estimator"] == UNIFORM].set_index(["layers", "text"])[measure.positive]
    rows = rows.assign(last_hidden_error=rows["hidden_error"].str[-1].astype(float))
    for key, group in rows.groupby(LINE, sort=False):
        names: dict[str, Any] = dict(zip(LINE, key, strict=True))
        by_text = group.groupby("text").mean(numeric_only=True)
        effects, distances = by_text[measure.column], by_text[measure.positive]
        interval = median_interval(effects.to_numpy())
        with np.errstate(invalid="ignore"):
            beyond = distances - uniform.reindex([(names["layers"], text) for text in by_text.index]).to_numpy()
            worse = names["kind"] in COMPARED and bool(beyond.median() > 0)
        heads_of_group = heads[heads["row"].isin(group.index)]
        errors = heads_of_group["head_error"].to_numpy()
        quantiles = unbounded(np.quantile(bounded(errors), (0.5, 0.9, 1.0))) if len(errors) else [np.nan] * 3
        median, q90, largest = quantiles
        yield {
            **names, "texts": len(by_text), "draws": int(group["draw"].nunique()),
            "cost": float((by_text["multiplications"] / by_text["exact_multiplications"]).median()),
            "effect": float(np.median(effects)), "low": interval.low, "high": interval.high,
            "worst": effects.max(skipna=False), "worse": worse, "distance": distances.median(),
            "worst_distance": distances.max(), **by_text[_MEDIANS].median(),
            "last_hidden_error": by_text["last_hidden_error"].median(), "rank": _rank(group, exact),
            "head_median": median, "head_q90": q90, "head_max": largest,
            "head_after_projection": _by_layer(heads_of_group)["head_after_projection"].median(skipna=False),
        }  # fmt: skip


def _by_head(rows: pd.DataFrame) -> pd.DataFrame:
    """The errors of single heads, a row each; row: the index of the measurement."""
    columns = ["head_layer", "head_error", "head_after_projection"]
    errors = rows.loc[rows["head_error"].notna(), columns].explode(columns).astype(float)
    return errors.dropna(subset="head_layer").rename_axis("row").reset_index()


def _by_layer(heads: pd.DataFrame) -> pd.DataFrame:
    """For each measurement and layer, the median error of its heads, and |W_O error| / |h| of all together."""
    groups = heads.assign(squares=heads["head_after_projection"] ** 2).groupby(["row", "head_layer"])
    after = groups["squares"].sum(min_count=1) ** 0.5
    return pd.DataFrame({"head_error": groups["head_error"].median(), "head_after_projection": after})


def _rank(group: pd.DataFrame, exact: pd.DataFrame) -> float:
    """Spearman's correlation of similarities, the mean over draws; NaN unless all texts, at least 3, are there."""
    if len(exact) < 3 or (group.groupby("draw").size() != len(exact)).any():
        return np.nan
    ranks, draws = _cosines(exact).rank(), (draw for _, draw in group.groupby("draw"))
    return float(np.mean([ranks.corr(_cosines(draw).rank(), min_periods=len(ranks)) for draw in draws]))


def _cosines(rows: pd.DataFrame) -> pd.Series:
    """The cosines of the embeddings of all pairs of texts."""
    matrix = np.stack([*rows.sort_values("text")["embedding"]])
    with np.errstate(invalid="ignore"):  # an embedding of zeros, as of a layer alone without its attention, has none
        matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return pd.Series((matrix @ matrix.T)[np.triu_indices(len(matrix), 1)])


def sentence(rows: pd.DataFrame) -> str:
    """State the finding, with the numbers of texts and draws.

    It covers the settings with most texts, all of the same texts; among these, only those that cost less than exact
    attention, if there are any. The best setting has the smallest distance, KL for a language model. A setting is
    unnoticed if its distance on every text is at most the largest one of bfloat16. An incomplete study without bfloat16
    says nothing about that.
    """
    measure = measure_of(rows)
    rows = rows[rows["layers"] == lines_of(rows)["layers"].iloc[0]]
    groups = rows[rows["kind"].isin(COMPARED)].groupby(LINE, sort=False)["text"]
    if not (texts_of := Counter(frozenset(names) for _, names in groups)):
        return ""
    most = max(texts_of, key=lambda texts: (len(texts), texts_of[texts]))
    rows = rows[rows["text"].isin(most)]
    lines = lines_of(rows)
    compared = lines[lines["kind"].isin(COMPARED)]
    compared = compared[compared["texts"] == len(most)]
    cheaper = compared[compared["cost"] < 1]
    settings, which = (cheaper, "cheaper") if len(cheaper) else (compared, "none of them cheaper")
    if compared["cost"].isna().any() and cheaper.empty:
        which = "none of them known to be cheaper"
    best = settings.sort_values("distance", kind="stable").iloc[0]
    bfloat16 = lines[lines["estimator"].isin([BFLOAT16, "exact, attention in bfloat16"])]
    finding, also, more = f"{counted(len(settings), 'setting')} ({which} than exact attention)", "", ""
    uniform = lines[lines["estimator"] == UNIFORM].iloc[0]
    if len(bfloat16):
        limit = float(bfloat16["worst_distance"].max())
        unnoticed = int((settings["worst_distance"] <= limit).sum())
        if uniform["worst_distance"] <= limit:
            where = "this model" if which_layers(best["layers"], rows) == "all layers" else "these layers"
            more = f", unnoticed too: attention hardly matters in {where} on these texts"
        finding = f"{unnoticed or 'none'} of {finding} replace{'s' if unnoticed < 2 else ''} attention unnoticed"
        also = f"bfloat16 {_costs(bfloat16['effect'].max(), measure)} and "
    rows_of_best = rows[(rows[LINE] == best[LINE]).all(axis=1)]
    fewer = "up to " * bool(rows_of_best["text"].value_counts().min() < best["draws"])
    texts, draws = counted(best["texts"], "text"), f"{fewer}{counted(best['draws'], 'draw')}"
    at_cost = "" if np.isnan(best["cost"]) else f" at {best['cost']:.2f} of its multiplications,"
    also += f"uniform attention {_costs(uniform['effect'], measure)}{more}"
    return (
        f"{which_layers(best['layers'], rows)}, {with_tokens(texts, rows)}, {draws}: {finding}: the best, "
        f"{described(best)},{at_cost} {_costs(best['effect'], measure)} (worst "
        f"text {_value(best['worst'], measure)}), where {also}"
    )


def with_tokens(texts: str, rows: pd.DataFrame) -> str:
    """ "2 texts of 512 tokens", "2 texts of 24 to 512 tokens", or "2 inputs" of a module that brings them."""
    lengths = sorted({rows["seq_len"].min(), rows["seq_len"].max()})
    return texts.replace("text", "input") if lengths == [1] else f"{texts} of {' to '.join(map(str, lengths))} tokens"


def which_layers(layers: str, rows: pd.DataFrame) -> str:
    """ "all layers", "all layers but 2" that cannot be replaced in these measurements, "layer 3", "layers 0,3"."""
    left = int(rows["left"].max())
    return f"all layers{f' but {left}' * (left > 0)}" if layers == ALL else f"layer{'s' * (',' in layers)} {layers}"


def described(line: Mapping[str, Any] | pd.Series) -> str:
    """An estimator with its size, for sentences and legends."""
    size = "" if not line["size"] else f", {'R' if line['kind'] == 'map' else 'm'} = {line['size']}"
    sampler = "" if line["sampler"] in ("-", "orthogonal") else f", {line['sampler']}"
    return f"{line['estimator']}{sampler}{size}"


def _costs(value: float, measure: Measure) -> str:
    text = _value(value, measure)
    if measure is ENCODER:
        return f"leaves embeddings at cosine {text}"
    return f"costs {text} nats per token" if measure is LANGUAGE else f"costs a KL of {text} nats"


def _value(value: float, measure: Measure) -> str:
    if not np.isfinite(value):
        return "NaN" if measure is ENCODER else "inf"
    if measure is ENCODER:
        return f"{1.0 - value:.5f}"
    return f"{value:.2g}" if measure is PREDICTION else f"{round(value, 3) + 0.0:.3f}"  # a KL is small, and no change


class Predictions(NamedTuple):
    """How well the errors of a layer's heads under exact inputs predict the effect of replacing that layer.

    points: for each layer replaced alone, text, estimator, size and draw: the relative error of its heads (median),
    |W_O error| / |h| (root of the sum of squares over heads) and the effect. of_relative_error, of_projected_error:
    Spearman's correlation of each with the effect, over all points.
    """

    points: pd.DataFrame
    of_relative_error: float
    of_projected_error: float

    @property
    def sentence(self) -> str:
        """The correlations, where they are known, and the number of points."""
        named = {
            "|W_O error| / |h|": self.of_projected_error, "the relative error of its heads": self.of_relative_error
        }  # fmt: skip
        parts = [f"{value:.2f} of {name}" for name, value in named.items() if not np.isnan(value)]
        over = f"over {len(self.points)} points (layer, text, estimator, size, draw)"
        of_layers = "rank correlation (Spearman) with the effect of a layer replaced alone"
        return f"{of_layers}: {' and '.join(parts)}, {over}" if parts else ""


def predictions(results: ModelResults) -> Predictions | None:
    """None if fewer than two layers were replaced alone, or heads were not measured."""
    keys = ["text", "estimator", "sampler", "size", "draw"]
    rows = results.rows[results.rows["kind"].isin(COMPARED)]
    whole = _by_layer(_by_head(rows[rows["layers"] == ALL])).reset_index()
    whole = whole.join(rows[keys], on="row").rename(columns={"head_layer": "layer"})
    single = rows[rows["layers"].str.fullmatch(r"\d+")][[*keys, "kind", "layers", results.measure.positive]]
    single = single.assign(layer=single["layers"].astype(int)).rename(columns={results.measure.positive: "effect"})
    columns = [*keys, "kind", "layer", "head_error", "head_after_projection", "effect"]
    points = single.merge(whole, on=[*keys, "layer"])[columns]
    if points["layer"].nunique() < 2:
        return None
    ranks = points["effect"].rank()
    relative, projected = (float(points[name].rank().corr(ranks)) for name in columns[-3:-1])
    return Predictions(points, relative, projected)


MANY = 3  # with more sets of layers, only effects are shown

#: Headings and columns of the second table, and the word for them in its title.
SECOND = {
    "KL": ("kl", "next tokens"), "top1": ("top1", ""), "hidden": ("last_hidden_error", "hidden states"),
    "head": ("head_median", "single heads"), "90 %": ("head_q90", ""), "max": ("head_max", ""),
    "W_O": ("head_after_projection", ""),
}  # fmt: skip


def sections(results: ModelResults) -> Sections:
    """The tables of a study, with a note and sentences.

    A set of layers has a table of effects and a table of other measures, both up to 80 characters wide if names are
    short. If there are more than MANY sets, single layers share one table of effects.
    """
    shown, lines = [], results.lines
    sets = lines["layers"].nunique()
    for layers, rows in lines.groupby("layers", sort=False):
        if layers == ALL or sets <= MANY:
            shown += _tables(results, rows, f"{which_layers(str(layers), results.rows)} replaced")
    if sets > MANY:
        single = lines[lines["layers"] != ALL]
        columns = dict.fromkeys(single["layers"], "-")
        table = [
            {"estimator": described(group.iloc[0])}
            | columns
            | dict(zip(group["layers"], map(_marked, group["effect"], group["worse"]), strict=True))
            for _, group in single.groupby(["estimator", "sampler", "size"], sort=False)
        ]
        shown.append(Section(f"one layer replaced at a time: {results.measure.heading}", table))
    columns = {column for section in shown for row in section.rows for column in row}
    return Sections([*shown, Section(note=note(results, columns), sentences=sentences(results))])


def _tables(results: ModelResults, rows: pd.DataFrame, title: str) -> list[Section]:
    second = {name: column for name, (column, _) in SECOND.items() if rows[column].notna().any()}
    if results.measure is not LANGUAGE:
        shown_or_none = ("KL", "top1") if results.measure is ENCODER else ("KL",)
        second = {name: column for name, column in second.items() if name not in shown_or_none}
    effects, others = [], []
    for _, line in rows.iterrows():
        estimator = {"estimator": described(line).removeprefix("exact, ")}  # all rows above the estimators are exact
        effects.append(estimator | _effect(line, results))
        others.append(estimator | {name: _number(line[column]) for name, column in second.items()})
    shown = ", ".join(SECOND[name][1] for name in second if SECOND[name][1])
    return [Section(title, effects), *([Section(f"{title}: {shown}", others)] if len(second) > 1 else [])]


def _effect(line: pd.Series, results: ModelResults) -> dict[str, str]:
    shown = {"cost": _number(line["cost"])} | ({"time": _number(line["time"])} if "time" in line else {})
    shown |= {
        results.measure.heading: _marked(line["effect"], line["worse"]),
        "interval": f"[{_number(line['low'])}, {_number(line['high'])}]", "worst": _number(line["worst"]),
    }  # fmt: skip
    shown |= {"predicted": _number(line["predicted"])} if "predicted" in line else {}
    shown |= {"texts": str(line["texts"])} if results.uneven else {}
    if results.measure is LANGUAGE:
        shown |= {"late": _number(line["late_delta_nll"])}
    elif results.measure is ENCODER and results.lines["rank"].notna().any():
        shown |= {"rank": _number(line["rank"])}
    return {**shown, "NaN": _number(line["nonfinite"])} if results.lines["nonfinite"].any() else shown


def sentences(results: ModelResults) -> list[str]:
    """That draws are missing, the warnings, the finding, and how well errors of heads predict the effect of a layer."""
    partial = "PARTIAL: not all measurements are there yet; run the same command again to complete them."
    missing = results.manifest["measurements_done"] < results.manifest["measurements"]
    predicted = predictions(results)
    warned = [f"{text}." for text in results.manifest["asked"].get("notes", ())]
    found = (missing and partial, *warned, sentence(results.rows), predicted and predicted.sentence)
    return [text for text in found if text]


def note(results: ModelResults, columns: Iterable[str]) -> str:
    """The meaning of the columns that are shown."""
    timed = conditions(results.path) if "time" in results.lines else ""
    second_order = f"{'1 - cos' if results.measure is ENCODER else 'KL'} to second order"
    meanings = {
        "1 - cos": "1 - cos: 1 - cosine between original and modified embedding",
        "rank": "rank: Spearman's correlation of the similarities of all pairs of texts",
        "nats": "nats: change of the negative log likelihood, per token",
        "late": "late: the same over the second half of a text",
        "KL": "KL(exact || replaced) in nats",
        "predicted": f"predicted: {second_order}, the sum of the effects of all heads",
        "top1": "top1: same most likely token",
        "hidden": "hidden: relative error after the last layer",
        "head":
            "head, 90 %, max: median, 90 % quantile and maximum of the relative errors of single heads, under exact "
            "inputs",
        "W_O":
            "W_O: |W_O error| / |h|, root of the sum of squares over the heads of a layer, median over layers",
        "cost": "cost: multiplications / those of exact attention",
        "time": f"time: CPU seconds / those of exact attention (torch's own), interleaved, {timed}",
    }  # fmt: skip
    shown = {results.measure.heading, *columns}
    fewest = interval_name(int(results.lines["texts"].min()))
    interval = interval_name(results.texts)
    interval += f" ({fewest} of fewer than {fewest_draws(1)})" * (fewest != interval)
    interval += " over texts, without the spread of the draws, which all texts share" * (results.texts > 1)
    by = " by the KL" * (results.measure is LANGUAGE)
    left = int(results.rows["left"].max())
    exact = f"{counted(left, 'layer')} cannot be replaced: exact, and not in the cost. " if left else ""
    return (
        f"{'; '.join(meaning for name, meaning in meanings.items() if name in shown)}. {exact}Median over "
        f"{results.counted_texts} of the mean over draws, {interval}; *: worse than uniform attention{by}, text by text"
    )


def _marked(effect: float, worse: bool) -> str:
    """An effect, with a mark where it is worse than that of uniform attention."""
    return f"{_number(effect)}{'*' * worse}"


def _number(value: Any) -> str:
    """Two digits, in fixed point where that is short."""
    if pd.isna(value):
        return "-"
    if value == 0:
        return "0"
    for least, digits in ((0.1, 2), (0.01, 3), (0.001, 4)):
        if least <= abs(value) < 100:
            return f"{value:.{digits}f}"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
