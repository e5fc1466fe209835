"""The plan: a pure function from a scenario to its draws."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from favorbench.arrays import GPU_TILE_ELEMENTS, Backend
from favorbench.baselines import MATRIX_LIMIT, Baseline, get_baseline
from favorbench.errors import ScenarioError
from favorbench.inputs import Head, get_input
from favorbench.machine import Rates, one_core, rates
from favorbench.maps import FeatureMap, get_map
from favorbench.registry import label, nearest
from favorbench.samplers import get_sampler
from favorbench.scenario import Scenario

MAX_DRAWS = 1_000_000


@dataclass(frozen=True)
class Draw:
    """The unit of work, of resuming and of pairing: one realisation of the inputs, and all that is measured on it."""

    index: int
    input: str
    head: Head
    scale: float
    dtype: str
    trial: int
    sizes: tuple[int, ...]
    #: The draw's part in the names of its random streams. Scale and dtype are not in it: draws that differ in these
    #: alone share their random numbers, so that they are paired.
    stream_names: tuple[str | int, ...]


class Cost(NamedTuple):
    """What a plan will cost, roughly."""

    draws: int
    rows: int
    cells: int
    memory_bytes: int
    seconds: float


def plan(scenario: Scenario) -> tuple[Draw, ...]:
    """All draws of a scenario, trial by trial, so that a run cut short has covered every cell evenly.

    Raises ScenarioError where the backend is not to be had, an input does not have the length, the head_dim or the
    heads asked for, a sampler cannot draw so many projections, or something cannot be causal.
    """
    Backend(scenario.backend, scenario.device).check(scenario.dtype)
    if scenario.causal:
        _check_causal(scenario)
    cells = []
    for spec in scenario.inputs:
        heads = _chosen(scenario, spec, get_input(spec).heads(scenario.seq_len, scenario.head_dim))
        if scenario.causal and (head := next((h for h in heads if h.query_len != h.seq_len), None)):
            raise ScenarioError(
                f"--causal: {spec} has {head.query_len} queries and {head.seq_len} keys; causal attention needs as many"
            )
        for head, scale, dtype in itertools.product(heads, scenario.scale, scenario.dtype):
            sizes = _sizes(scenario, head.head_dim)
            _check_samplers(scenario, head.head_dim, sizes)
            for group in [(size,) for size in sizes] if scenario.redraw == "R" else [sizes]:
                cells.append((spec, head, scale, dtype, group))
    if len(cells) * scenario.trials > MAX_DRAWS:
        raise ScenarioError(
            f"{len(cells)} cells x {scenario.trials} trials are {len(cells) * scenario.trials} draws; "
            f"at most {MAX_DRAWS} fit in one run: use fewer --trials, or several runs with different --seed"
        )
    draws = []
    for trial in range(scenario.trials):
        for spec, head, scale, dtype, group in cells:
            names = (spec, head.label, head.query_len, head.seq_len, head.head_dim, trial)
            names += group if scenario.redraw == "R" else ()
            draws.append(Draw(len(draws), spec, head, scale, dtype, trial, group, names))
    return tuple(draws)


def batches(scenario: Scenario, draws: Sequence[Draw], batch: int | None) -> list[list[Draw]]:
    """Draws of one shape together, ``batch`` at a time; None: one at a time on a CPU, on a GPU as many as fill it."""
    backend, groups = Backend(scenario.backend, scenario.device), {}
    if not backend.batched:
        return [[draw] for draw in draws]
    for draw in draws:
        groups.setdefault((draw.head._replace(label=""), draw.dtype, draw.sizes), []).append(draw)
    found = []
    for (head, _, sizes), members in groups.items():
        size = batch or _automatic_batch(backend, head, sizes[-1])
        if scenario.causal and scenario.rows(head.query_len) < head.query_len:
            size = 1  # each draw has query rows of its own, and with them a mask of its own
        found += [members[i : i + size] for i in range(0, len(members), size)]
    return found


def _automatic_batch(backend: Backend, head: Head, width: int) -> int:
    """On a GPU as many draws as make two full tiles of features, in at most a quarter of its free memory."""
    free = backend.free_memory()
    if free is None:
        return 1
    tokens = head.query_len + head.seq_len
    fits = free // 4 // (8 * tokens * (6 * head.head_dim + 2))
    return max(1, min(fits, 2 * GPU_TILE_ELEMENTS // (head.seq_len * width)))


def cost(scenario: Scenario, draws: tuple[Draw, ...]) -> Cost:
    """Rows exactly; memory and time (one worker) from operation counts and rates measured now, within a factor of 2."""
    maps = [get_map(spec) for spec in scenario.maps]
    baselines = [get_baseline(spec) for spec in scenario.baselines]
    machine = _rates()
    seconds, memory, rows = 0.0, 0, 0
    for draw in draws:
        head, width = draw.head, max(draw.sizes)
        rows_measured = scenario.rows(head.query_len)
        tokens, entries = rows_measured + head.seq_len, rows_measured * head.seq_len
        flops = 4.0 * entries * head.head_dim
        exps = float(entries)
        for feature_map in maps:
            columns = feature_map.num_features(width, head.head_dim) * _samples(scenario, feature_map)
            flops += 2.0 * tokens * columns * (2 * head.head_dim + 1)
            exps += 3.0 * tokens * columns
        whole = rows_measured == head.query_len and entries <= MATRIX_LIMIT
        answering = [baseline for baseline in baselines if whole or not baseline.needs_all_rows]
        decomposed = any(baseline.needs_all_rows for baseline in answering)
        flops += 12.0 * head.query_len**3 if decomposed else 0.0
        landmarks = sum(baseline.name in ("nystrom", "wildcat") for baseline in answering)
        flops += 2.0 * landmarks * tokens * width * (width + 2 * head.head_dim)
        seconds += flops / machine.gemm + exps / machine.exp
        matrices = 4 * entries if decomposed else head.seq_len * width if "wildcat" in scenario.baselines else 0
        memory = max(memory, 8 * (5 * tokens * head.head_dim + width * head.head_dim + matrices))
        rows += _rows(scenario, maps, answering, len(draw.sizes))
    cells = len({(d.input, d.head, d.scale, d.dtype) for d in draws})
    return Cost(len(draws), rows, cells, memory, seconds)


def _rows(scenario: Scenario, maps: Sequence[FeatureMap], baselines: Sequence[Baseline], sizes: int) -> int:
    """Rows of one draw: one for each sampler and R, but for what does not depend on them."""
    every_size = [_samples(scenario, m) for m in maps if m.features_per_projection]
    every_size += [1 for baseline in baselines if baseline.every_size]
    return sizes * sum(every_size) + len(maps) + len(baselines) - len(every_size)


def _samples(scenario: Scenario, feature_map: FeatureMap) -> int:
    """How many samples a map is measured on: one for each sampler, unless omega plays no part."""
    return 1 if feature_map.own_sample or not feature_map.features_per_projection else len(scenario.samplers)


def _sizes(scenario: Scenario, head_dim: int) -> tuple[int, ...]:
    """R, in projections or, with budget "features", in features: then each map must divide it."""
    sizes = scenario.sizes(head_dim)
    if scenario.budget == "features":
        for spec in scenario.maps:
            per = get_map(spec).features_per_projection or 1
            for size in sizes:
                if size % per:
                    raise ScenarioError(
                        f"-R {size} with --budget features: map {spec!r} has {per} features for each projection; "
                        f"use a multiple of {per}, e.g. {size + per - size % per}"
                    )
    return sizes


def _check_causal(scenario: Scenario) -> None:
    """What takes its parameters from the whole sequence would see the future."""
    members = [("--maps", get_map(spec)) for spec in scenario.maps]
    members += [("--baselines", get_baseline(spec)) for spec in scenario.baselines]
    for flag, member in members:
        if not member.causal_safe:
            raise ScenarioError(
                f"{flag} {label(member)}: it uses the whole sequence and cannot be causal; leave out one or the other"
            )


def _check_samplers(scenario: Scenario, head_dim: int, sizes: tuple[int, ...]) -> None:
    """Raise ScenarioError if a sampler cannot draw what a map will ask of it."""
    maps = [m for m in (get_map(spec) for spec in scenario.maps) if m.features_per_projection and not m.own_sample]
    for spec, feature_map, size in itertools.product(scenario.samplers, maps, sizes):
        per = feature_map.features_per_projection if scenario.budget == "features" else 1
        get_sampler(spec).check(size // per, head_dim)


def _chosen(scenario: Scenario, spec: str, heads: tuple[Head, ...]) -> tuple[Head, ...]:
    if scenario.heads is None:
        return heads
    labels = [head.label for head in heads]
    for wanted in scenario.heads:
        if wanted not in labels:
            shown = ", ".join(dict.fromkeys(labels))
            raise ScenarioError(f"--heads: {spec} has no head {wanted!r}{nearest(wanted, labels)}; it has {shown}")
    return tuple(head for head in heads if head.label in scenario.heads)


def _rates() -> Rates:
    """The rates of this machine, with a matrix product as thin as those of attention; in 10 ms."""
    left, right = np.ones((512, 16)), np.ones((16, 512))
    with one_core():
        return rates(lambda: left @ right, 2.0 * 512 * 16 * 512)
