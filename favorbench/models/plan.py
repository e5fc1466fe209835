"""What a study of a model asks, and the measurements that come of it: a pure function of what was asked."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from favorbench.errors import InputError, ScenarioError
from favorbench.maps import get_map
from favorbench.methods.features import LinearAttention
from favorbench.models.recommended import by_head
from favorbench.models.replacements import EstimatedAttention, Exact, Removed, Replacement, replacement
from favorbench.models.swap import REDRAWS
from favorbench.parameters import check_whole
from favorbench.registry import nearest
from favorbench.samplers import get_sampler

ALL, EACH = "all", "each"

LENGTH = 512

BFLOAT16 = "exact, model in bfloat16"  # all of it, not its attention alone


@dataclass(frozen=True)
class Asked:
    """A study of one model; texts, calibrate and recommended are paths. Checked when it is made: raises ScenarioError,
    InputError.

    length: tokens of each text, at most; None: LENGTH, or as many as the model reads. sizes: R of maps, m of methods.
    layers: "all", "each", or numbers of layers that are replaced together, with commas; "all,each" for both. calibrate:
    the text that ``calibrated:`` maps are fitted to. heads: the errors of single heads are measured, too.
    recommended: directories of ``recommend``, whose choices are one estimator each.
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

    def __post_init__(self) -> None:
        if not self.texts:
            raise InputError("`text`: a model is measured on text: give one file or more")
        if self.redraw not in REDRAWS:
            raise ScenarioError(f"`redraw` {self.redraw!r}{nearest(self.redraw, REDRAWS)}; allowed: {_or(REDRAWS)}")
        check_whole("draws", self.draws, 1, 1 << 16)
        for size in self.sizes:
            check_whole("num_projections", size, 1, 1 << 20)
        self.replacements()
        self.layer_sets()

    def replacements(self) -> tuple[Replacement, ...]:
        """The estimators, each at each of its sizes. Raises ScenarioError for an unknown one."""
        found: list[Replacement] = []
        for sampler, name in itertools.product(self.samplers, self.maps):
            get_sampler(sampler)
            found += (EstimatedAttention(LinearAttention(get_map(name), sampler), size) for size in self.sizes)
        for name in self.methods:
            found += (replacement(name, size) for size in self.sizes)
        chosen = [by_head(path) for path in self.recommended]
        for one, path in zip(chosen, self.recommended, strict=True):
            if sum(other.name == one.name for other in chosen) > 1:
                raise ScenarioError(
                    f"`recommended` {path}: another one is called {one.name!r}, too; rename one of them"
                )
        return tuple({(one.label, one.sampler, one.size): one for one in [*found, *chosen]}.values())

    def layer_sets(self) -> tuple[str, ...]:
        """ "all", "each", and numbers with commas. Raises ScenarioError."""
        parts = [part.strip() for part in self.layers.split(",")]
        words = [part for part in parts if part in (ALL, EACH)]
        numbers = [part for part in parts if part not in words]
        for part in numbers:
            if not (part.isascii() and part.isdigit()):
                close = nearest(part, (ALL, EACH))
                raise ScenarioError(f"`layers` {part!r}{close}; allowed: all, each, or numbers with commas")
        joined = ",".join(map(str, sorted({int(part) for part in numbers})))
        return tuple(dict.fromkeys([*words, *([joined] if joined else [])]))


class Unit(NamedTuple):
    """One measurement: a replacement in some layers on one text. layers: None for all."""

    text: str
    layers: str
    what: Replacement | None
    draw: int

    @property
    def name(self) -> str:
        """Of the estimator."""
        return BFLOAT16 if self.what is None else self.what.label

    @property
    def kind(self) -> str:
        """map, method, oracle, exact, or trivial."""
        return "exact" if self.what is None else self.what.kind

    @property
    def key(self) -> tuple[str, str, str, str, int, int]:
        """What it is, in the columns of its row."""
        size, sampler = (None, None) if self.what is None else (self.what.size, self.what.sampler)
        return self.text, self.layers, self.name, sampler or "-", size or 0, self.draw


def units(asked: Asked, texts: Sequence[str], possible: Sequence[int]) -> list[Unit]:
    """All measurements, text by text, what to compare with first; possible: the layers that can be replaced."""
    # uniform attention, say, may be asked for besides
    return list({unit.key: unit for unit in _units(asked, texts, possible)}.values())


def _units(asked: Asked, texts: Sequence[str], possible: Sequence[int]) -> Iterator[Unit]:
    sets = [one for word in asked.layer_sets() for one in (map(str, possible) if word == EACH else [word])]
    for text, layers in itertools.product(texts, sets):
        fixed: list[Replacement | None] = [Exact("bfloat16"), replacement("uniform"), Removed()]
        if layers == ALL:
            fixed = [Exact(), None, *fixed]
        for one in fixed:
            yield Unit(text, layers, one, 0)
        for one in asked.replacements():
            if layers != ALL and not one.is_for(map(int, layers.split(","))):
                continue
            for draw in range(asked.draws if one.random else 1):
                yield Unit(text, layers, one, draw)


def _or(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
