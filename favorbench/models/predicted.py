"""Predicted effects of replacing single heads, from gradients (gradients.py), stored in the directory of a study.

DIR/effects.json    the effect of each of ``heads``, by text, estimator and draw; null if the estimator failed
"""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NotRequired

import numpy as np
import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict

from favorbench.errors import ScenarioError
from favorbench.files import read_json, write_text
from favorbench.formats import counted, format_bytes, json_text
from favorbench.models.plan import ALL
from favorbench.models.recommended import head_names
from favorbench.models.replacements import Replacement, replacement
from favorbench.models.seconds import TIMED
from favorbench.models.study import MeasuredModel
from favorbench.progress import Progress

FILE = "effects.json"


#: The key of a replacement and its draw.
EstimatorName = Annotated[str, Field(pattern=r"^.+ .+ \d{1,9} \d{1,19}$")]


class EffectsFile(TypedDict):
    """The file. gradients: how many of each text."""

    heads: NotRequired[list[str]]
    gradients: NotRequired[int]
    texts: dict[str, dict[EstimatorName, list[float | None]]]


def predicted_effects(
    model: MeasuredModel, texts: Mapping[str, int], replacements: Sequence[Replacement], path: Path, report: Progress,
    gradients: int,
) -> np.ndarray:  # fmt: skip
    """The predicted effects (replacements, heads), means over texts; inf where an estimator failed.

    texts: names, with the draw of each. gradients: the number for each text. Stored effects are reused; raises
    ScenarioError where they are of another number.
    """
    file, effects = path / FILE, []
    heads = head_names({layer.index: range(layer.heads) for layer in model.replaceable})
    check_gradients(path, gradients)
    known = _stored(file)
    for done, (text, draw) in enumerate(texts.items()):
        report(done, len(texts), step="the predicted effect of each head")
        stored = known["texts"].setdefault(f"{text} {model.texts[text].sha256}", {})
        named = {" ".join(map(str, (*item.key, draw if item.random else 0))): item for item in replacements}
        if missing := {name: item for name, item in named.items() if len(stored.get(name, ())) != len(heads)}:
            computed = model.head_effects(text, list(missing.values()), draw, gradients)
            stored |= zip(missing, computed.tolist(), strict=True)
            write_text(file, json_text(known | {"heads": heads, "gradients": gradients}) + "\n")
        effects.append([stored[name] for name in named])
    means = np.array(effects, dtype=float).mean(axis=0)
    return np.where(np.isfinite(means), means, math.inf)


def check_gradients(path: Path, gradients: int) -> None:
    """Raise ScenarioError if the stored predictions of a study are of another number of gradients."""
    if (stored := _stored(path / FILE).get("gradients", gradients)) != gradients:
        raise ScenarioError(
            f"`predict` {gradients} given, and {path / FILE} is of {stored} gradients: give `predict` {stored}, or "
            "another `out`"
        )


def _stored(file: Path) -> EffectsFile:
    return read_json(file, EffectsFile, "effects") if file.exists() else {"texts": {}}


def predict(
    model: MeasuredModel, path: Path, gradients: int, report: Progress | None, notice: Callable[[str], None]
) -> None:
    """Predict the effects of all estimators of a study, draw by draw; notice: receives the memory of the gradients."""
    groups, size = max((model.gradient_groups(text, gradients) for text in model.texts), key=itemgetter(1))
    together = f", {max(map(len, groups))} at a time" if len(groups) > 1 else ""
    layers = counted(len(model.replaceable), "layer")
    notice(f"{counted(gradients, 'gradient')} of {layers}{together}: {format_bytes(size)} of memory")
    uniform, scenario = replacement("uniform"), model.scenario
    for draw in range(scenario.draws):
        estimators = [item for item in (uniform, *scenario.replacements) if item.random or not draw]
        if estimators:
            predicted_effects(
                model, dict.fromkeys(model.texts, draw), estimators, path, report or (lambda *_, **__: None), gradients
            )


def with_predictions(lines: pd.DataFrame, rows: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Add a column ``predicted`` to the lines of a study, the sum over all heads, if there are predictions.

    Like the measured effect, it is the median over texts of the mean over draws; NaN where it is not of the same texts
    and draws.
    """
    keys = rows[[*TIMED, "draw"]].drop_duplicates().itertuples(index=False, name=None)
    names = {" ".join(map(str, key)): key for key in keys}  # parts of a name may have spaces, too
    sums = [
        (text.rpartition(" ")[0], *names[name], sum(math.inf if effect is None else effect for effect in heads))
        for text, estimators in _stored(path / FILE)["texts"].items()
        for name, heads in estimators.items()
        if name in names
    ]
    if not sums:
        return lines
    table = pd.DataFrame(sums, columns=["text", *TIMED, "draw", "predicted"])
    predicted, measured = _draws_of(table), _draws_of(rows[rows["layers"] == ALL])
    alike = [key for key, draws in predicted.items() if draws == measured.get(key)]
    medians = table.groupby(["text", *TIMED])["predicted"].agg(fmean).groupby(TIMED).median()
    lines = lines.merge(medians.loc[alike].reset_index(), on=TIMED, how="left", sort=False)
    return lines.assign(predicted=lines["predicted"].where(lines["layers"] == ALL))


def _draws_of(rows: pd.DataFrame) -> dict[Any, set[tuple[str, int]]]:
    """The texts and draws of each estimator."""
    return {key: {*zip(group["text"], group["draw"], strict=True)} for key, group in rows.groupby(TIMED)}
