"""Settings per head: the least predicted effect on the model at the cost of one setting for all heads.

The effect of each setting in each head alone is predicted on some texts from gradients (models/gradients.py), and adds
up over heads. The choices that follow are further candidates, tested on the other texts.
"""

import itertools
import json
import math
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from favorbench.models.predicted import predicted_effects
from favorbench.models.recommended import ByHead
from favorbench.models.replacements import Replacement
from favorbench.models.study import MeasuredModel
from favorbench.progress import Progress
from favorbench.studies.recommend.answer import in_words
from favorbench.studies.recommend.candidates import PER_HEAD, EstimatorSetting

MOST_TEXTS = 16  # on which settings are chosen, at most a third of all
GRADIENTS = 8  # of each of these texts

Head = tuple[int, int]  # layer and number


class PerHead(NamedTuple):
    """Choices per head as one candidate. single: the setting for all heads that costs as much."""

    setting: EstimatorSetting
    replacement: ByHead
    choices: dict[str, EstimatorSetting]
    single: EstimatorSetting


def settings_per_head(
    model: MeasuredModel, texts: Mapping[str, int], replacements: Mapping[EstimatorSetting, Replacement], path: Path,
    report: Progress,
) -> list[PerHead]:  # fmt: skip
    """Choose candidates by their predicted effects. texts: names, with the draw of each.

    Each candidate costs as much as a setting for all heads that has less effect than all cheaper ones. Candidates that
    are equal in all heads are left out.
    """
    heads = [(layer, head) for layer in model.replaceable for head in range(layer.heads)]
    works = [[layer.work(item, 1) for layer, _ in heads] for item in replacements.values()]
    costs = np.array([[math.inf if work is None else work for work in row] for row in works])
    exact = np.array([layer.multiplications / layer.heads for layer, _ in heads])
    effects = predicted_effects(model, texts, list(replacements.values()), path, report, GRADIENTS)
    options, per_head = list(replacements), []
    for i in _front(costs.sum(axis=1), effects.sum(axis=1)):
        if costs[i].sum() < exact.sum():
            chosen = allocate(np.vstack([costs, exact]).T, np.vstack([effects, 0 * exact]).T, costs[i].sum())
            if len({*chosen.tolist()}) > 1:
                named = {
                    (layer.index, head): options[k]
                    for (layer, head), k in zip(heads, chosen, strict=True)
                    if k < len(options)
                }
                per_head.append(_candidate(options[i], named, replacements))
    return per_head


def _front(costs: np.ndarray, effects: np.ndarray) -> list[int]:
    """The options that have less effect than all cheaper ones, in order of cost."""
    front: list[int] = []
    for option in np.lexsort((effects, costs)).tolist():
        if not front or effects[option] < effects[front[-1]]:
            front.append(option)
    return front


def _candidate(
    single: EstimatorSetting, chosen: Mapping[Head, EstimatorSetting],
    replacements: Mapping[EstimatorSetting, Replacement],
) -> PerHead:  # fmt: skip
    labels = {f"L{layer}H{head}": setting for (layer, head), setting in chosen.items()}
    digest = sha256(json.dumps(labels).encode()).hexdigest()
    layers: dict[int, dict[int, Replacement]] = {}
    for (layer, head), setting in chosen.items():
        layers.setdefault(layer, {})[head] = replacements[setting]
    candidate = ByHead(digest, layers, digest)
    candidate.label = f"{PER_HEAD} {digest[:12]}"  # identifies its rows
    name = f"settings {PER_HEAD}, as costly as {in_words(single)}"
    return PerHead(EstimatorSetting(PER_HEAD, name, None, None, candidate.label), candidate, labels, single)


def allocate(costs: np.ndarray, effects: np.ndarray, budget: float) -> np.ndarray:
    """The option of each head (heads,), of total cost at most ``budget`` unless the cheapest options cost more.

    costs, effects: (heads, options). Each head starts with its cheapest option. Steps along the convex hulls of effect
    against cost are taken by the effect that a multiplication saves; a head whose next step is too costly stays.
    Up to the first such head no choice of the same cost has less effect (Everett 1963, Operations Research 11,
    399-417; for quantizers Shoham & Gersho 1988, IEEE Trans. ASSP 36, 1445-1453).
    """
    hulls = [_hull(*head) for head in zip(costs, effects, strict=True)]
    steps = [
        ((effects[head, a] - effects[head, b]) / (costs[head, b] - costs[head, a]), head, a, b)
        for head, hull in enumerate(hulls)
        for a, b in itertools.pairwise(hull)
    ]
    chosen = np.array([hull[0] for hull in hulls])
    spent = costs[np.arange(len(chosen)), chosen].sum()
    for _, head, a, b in sorted(steps, key=lambda step: -step[0]):
        more = costs[head, b] - costs[head, a]
        if chosen[head] == a and spent + more <= budget * (1 + 1e-12):
            chosen[head], spent = b, spent + more
    return chosen


def _hull(costs: np.ndarray, effects: np.ndarray) -> list[int]:
    """The options on the lower convex hull of effect against cost, in order of cost, as long as the effect falls."""
    hull: list[int] = []

    def slope(a: int, b: int) -> float:
        return (effects[b] - effects[a]) / (costs[b] - costs[a])

    for option in filter(lambda option: math.isfinite(effects[option]), _front(costs, effects)):
        while len(hull) > 1 and slope(hull[-2], hull[-1]) > slope(hull[-1], option):
            hull.pop()
        hull.append(option)
    return hull
