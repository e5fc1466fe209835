"""What a plan will cost, before anything is computed."""

from typing import NamedTuple

import numpy as np

from favorbench.baselines.best_rank import MATRIX_LIMIT
from favorbench.engine.plan import Plan, Shape
from favorbench.engine.sizes import own_sizes
from favorbench.engine.study import Study
from favorbench.numerics.machine import Rates, available_memory, check_memory, one_core, rates

EXPS_OF_A_FEATURE = 3.0  # passes of exp, log or tan over each feature, of queries and of keys: the dearest maps have 3
LIBRARIES_BYTES = 128 << 20  # of a worker: 60 MiB before its first draw, and what SciPy and BLAS add; torch takes more

ARRAYS_OF_INPUTS = 5  # q, k, v and, at their largest, scaled copies of two of them


class Cost(NamedTuple):
    """What a plan will cost, roughly. memory_bytes: of each worker, beside the libraries. seconds: of one worker."""

    draws: int
    rows: int
    cells: int
    memory_bytes: int
    seconds: float


class _Work(NamedTuple):
    """Of one draw: flops of matrix products, exponentials, numbers held at a time, rows."""

    flops: float
    exps: float
    numbers: int
    rows: int


def cost(plan: Plan) -> Cost:
    """Rows exactly; memory and time from operation counts and rates measured now, within a factor of 2."""
    machine, trials = _rates(), plan.study.scenario.trials
    found = [_work(plan.study, shape) for shape in plan.shapes]
    seconds = sum(work.flops / machine.gemm + work.exps / machine.exp for work in found)
    cells = len({shape._replace(sizes=()) for shape in plan.shapes})
    memory = 8 * max(work.numbers for work in found)
    return Cost(len(plan), trials * sum(work.rows for work in found), cells, memory, trials * seconds)


def workers_that_fit(memory_bytes: int) -> int | None:
    """How many workers of so many bytes, and of what their libraries take, fit into what is free on this machine, in
    its container, or in its job; None where that is not known."""
    available = available_memory()
    return None if available is None else max(0, available // (memory_bytes + LIBRARIES_BYTES))


def check_fits(plan: Plan, workers: int = 1) -> None:
    """Raise ScenarioError, with the numbers, for a plan that does not fit into what is free on this machine."""
    each = 8 * max(_work(plan.study, shape).numbers for shape in plan.shapes)
    needed = each if workers == 1 else workers * (each + LIBRARIES_BYTES)  # those of this process are there already
    what = "this sweep" if workers == 1 else f"this sweep with {workers} `workers`"
    fewer = "" if workers == 1 else " or fewer `workers`"
    check_memory(needed, what, f"use a smaller `num_projections`, `head_dim`, `seq_len` or order of the map{fewer}")


def _work(study: Study, shape: Shape) -> _Work:
    head, rows_measured = shape.head, study.scenario.rows(shape.head.query_len)
    dim, tokens, entries = head.head_dim, rows_measured + head.seq_len, rows_measured * head.seq_len
    flops, exps = 4.0 * entries * dim, float(entries)  # exact attention: two products, one exp for each entry
    groups, widest = list(study.groups(shape.sizes, head)), 0
    for group in groups:
        columns = sum(feature_map.num_features(sized[-1].size, dim) for feature_map, sized in group.maps)
        flops += 2.0 * tokens * columns * (2 * dim + 1)  # projection, and product with [v, 1]
        exps += EXPS_OF_A_FEATURE * tokens * columns
        # omega, a summary of [v, 1] for each feature, and the features of at least one token
        widest = max(widest, group.width * dim + columns * (dim + 2))
    measured = study.shape(head)._replace(n=rows_measured)
    whole = rows_measured == head.query_len and entries <= MATRIX_LIMIT
    asked, held, rows = [*study.methods, *(one for one in study.baselines if whole or not one.needs_all_rows)], 0, 0
    for method in asked:
        sizes = own_sizes(study.sized(method, shape.sizes, head))
        flops += 2.0 * sum(method.multiplications(measured, size) or 0.0 for size in sizes)
        held, rows = max(held, method.matrix_entries(measured, sizes[-1])), rows + len(sizes)
    rows += sum(len(sized) for group in groups for _, sized in group.maps)
    return _Work(flops, exps, ARRAYS_OF_INPUTS * tokens * dim + max(widest, held), rows)


def _rates() -> Rates:
    """The rates of this machine, with a matrix product as thin as those of attention; in 10 ms."""
    left, right = np.ones((512, 16)), np.ones((16, 512))
    with one_core():
        return rates(lambda: left @ right, 2.0 * 512 * 16 * 512)
