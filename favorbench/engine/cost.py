"""What a plan will cost, before anything is computed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from favorbench.baselines import get_baseline
from favorbench.baselines.base import Baseline
from favorbench.baselines.best_rank import MATRIX_LIMIT
from favorbench.engine.plan import Draw
from favorbench.engine.scenario import Scenario
from favorbench.maps import FeatureMap, get_map
from favorbench.numerics.machine import Rates, one_core, rates


class Cost(NamedTuple):
    """What a plan will cost, roughly."""

    draws: int
    rows: int
    cells: int
    memory_bytes: int
    seconds: float


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


def _rates() -> Rates:
    """The rates of this machine, with a matrix product as thin as those of attention; in 10 ms."""
    left, right = np.ones((512, 16)), np.ones((16, 512))
    with one_core():
        return rates(lambda: left @ right, 2.0 * 512 * 16 * 512)
