"""The scenario of a study of a model, and the plan of its measurements, a pure function of it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from favorbench.engine.scenario import check_distinct
from favorbench.errors import InputError, ScenarioError
from favorbench.maps import get_map
from favorbench.methods.features import LinearAttention
from favorbench.methods.function import user_paths
from favorbench.models.load import is_function
from favorbench.models.recommended import ByHead, by_head, heads_by_layer
from favorbench.models.replacements import (
    Bfloat16Model,
    EstimatedAttention,
    Exact,
    Removed,
    Replacement,
    replacement,
)
from favorbench.models.store import ALL
from favorbench.models.swap import REDRAWS
from favorbench.parameters import check_name, check_whole
from favorbench.registry import label, nearest
from favorbench.samplers import get_sampler

EACH = "each"

LENGTH = 512

BFLOAT16 = Bfloat16Model.label

REFERENCES = ("exact", "removed", "uniform")


@dataclass(frozen=True)
class ModelScenario:
    """A study of one model; texts, calibrate and recommended are paths. Validated on construction.

    length: the most tokens per text; None: LENGTH, or the limit of the model. sizes: R of maps, m of methods.
    layers: "all", "each", or numbers of layers that are replaced together, with commas; "all,each" for both. calibrate:
    the text that ``calibrated:`` maps are fitted to. heads: also measure the errors of single heads. recommended:
    directories of ``recommend``; each counts as an estimator. device: of torch. exact_heads: heads such as
    "L7H6-8,L18H0" that stay exact in all maps and methods, but not in the references and in what was recommended.
    Raises ScenarioError and InputError.
    """

    model: str
    texts: tuple[str, ...]
    length: int | None = None
    maps: tuple[str, ...] = ("positive",)
    methods: tuple[str, ...] = ("clusters", "multipole")
    samplers: tuple[str, ...] = ("orthogonal",)
    sizes: tuple[int, ...] = (64, 256)
    draws: int = 3
    layers: str = ALL
    calibrate: str | None = None
    redraw: str = "layer"
    seed: int = 0
    heads: bool = True
    recommended: tuple[str, ...] = ()
    device: str = "cpu"
    exact_heads: str | None = None

    def __post_init__(self) -> None:
        if is_function(self.model) and (self.texts or self.length is not None):
            raise ScenarioError(f"{self.model} returns its own inputs: leave `text` and `length` out")
        if not self.texts and not is_function(self.model):
            raise InputError("`text`: a model is measured on text: give one file or more")
        check_name("redraw", self.redraw, REDRAWS)
        check_whole("draws", self.draws, 1, 1 << 16)
        for size in self.sizes:
            check_whole("num_projections", size, 1, 1 << 20)
        _ = self.replacements, self.layer_sets

    @cached_property
    def replacements(self) -> tuple[Replacement, ...]:
        """Every estimator at every size. Raises ScenarioError for an unknown one."""
        requested: list[Replacement] = []
        asked = self.maps, self.methods, self.samplers
        maps, methods, samplers = (tuple(dict.fromkeys(specs)) for specs in asked)
        labels = [*(label(get_map(name)) for name in maps), *(replacement(name).label for name in methods)]
        check_distinct((*maps, *methods), labels)
        check_distinct(samplers, [label(get_sampler(name)) for name in samplers])
        for sampler, name in itertools.product(samplers, maps):
            requested += (EstimatedAttention(LinearAttention(get_map(name), sampler), size) for size in self.sizes)
        requested += (replacement(name, size) for name in methods for size in self.sizes)
        for item in requested:
            if item.label in REFERENCES and isinstance(item, EstimatedAttention) and [*user_paths(item.method)]:
                raise ScenarioError(f"an estimator of yours may not be called {item.label!r}, as a reference is")
        kept, fitted = heads_by_layer(self.exact_heads), [item.label for item in requested if item.needs_calibration]
        if kept and fitted:
            raise ScenarioError(f"`exact_heads` with {fitted[0]}: leave one of them out")
        if kept and not requested:
            raise ScenarioError(
                "`exact_heads` are for `maps` and `methods`, and neither is given; `recommended` has its own choices"
            )
        requested = [ByHead.but_exact(item, kept) for item in requested]
        names: set[str] = set()
        for path in self.recommended:
            requested.append(chosen := by_head(path))
            if not isinstance(chosen, ByHead) or not chosen.sha256:
                continue  # one setting for all heads, which its label names
            if chosen.name in names:
                raise ScenarioError(
                    f"`recommended` {path}: another recommendation is called {chosen.name!r}, too; rename one of them"
                )
            names.add(chosen.name)
        parts = [part for item in requested for part in item.members() if isinstance(part, EstimatedAttention)]
        paths = dict.fromkeys((part.key[:2], " ".join(user_paths(part.method)) or part.label) for part in parts)
        check_distinct([path for _, path in paths], [" ".join(key).removesuffix(" -") for key, _ in paths])
        return tuple({item.key: item for item in requested}.values())

    @cached_property
    def layer_sets(self) -> tuple[str, ...]:
        """The sets of layers to replace: "all", "each", and numbers with commas. Raises ScenarioError."""
        parts = [part.strip() for part in self.layers.split(",")]
        words = [part for part in parts if part in (ALL, EACH)]
        for part in parts:
            if part not in words and not (part.isascii() and part.isdigit()):
                close = nearest(part, (ALL, EACH))
                raise ScenarioError(f"`layers` {part!r}{close}; allowed: all, each, or numbers with commas")
        numbers = sorted({int(part) for part in parts if part not in words})
        return tuple(dict.fromkeys([*words, *([",".join(map(str, numbers))] if numbers else [])]))


class PlannedRow(NamedTuple):
    """One row: a replacement in some layers ("all", or numbers with commas) on one text."""

    text: str
    layers: str
    replacement: Replacement
    draw: int

    @property
    def key(self) -> tuple[str, str, str, str, int, int]:
        """The values of the columns that identify the row."""
        return self.text, self.layers, *self.replacement.key, self.draw


def plan(scenario: ModelScenario, texts: Sequence[str], replaceable: Sequence[int]) -> list[PlannedRow]:
    """All measurements, text by text, references first; replaceable: the numbers of replaceable layers."""
    sets = [item for word in scenario.layer_sets for item in (map(str, replaceable) if word == EACH else [word])]
    planned: dict[object, PlannedRow] = {}  # a reference may be requested as an estimator, too
    for text, layers in itertools.product(texts, sets):
        references = [Exact("bfloat16"), replacement("uniform"), Removed()]
        if layers == ALL:
            references = [Exact(), Bfloat16Model(), *references]
        for item in [*references, *scenario.replacements]:
            if layers == ALL or item.is_for(map(int, layers.split(","))):
                draws = scenario.draws if item.random else 1
                rows = [PlannedRow(text, layers, item, draw) for draw in range(draws)]
                planned |= {row.key: row for row in rows}
    return list(planned.values())
