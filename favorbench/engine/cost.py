"""The cost of a plan, estimated before anything is computed."""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from favorbench.attention.causal import CHUNK
from favorbench.baselines.members import MATRIX_LIMIT
from favorbench.engine.plan import DrawShape, Plan
from favorbench.engine.study import CACHE_BYTES, Study, distinct_sizes
from favorbench.engine.trial import batches
from favorbench.inputs import Arrays, Fixed
from favorbench.methods.features import LinearAttention
from favorbench.numerics.arrays import TILE_ELEMENTS
from favorbench.numerics.machine import Rates, available_memory, check_memory, one_core, rates
from favorbench.users import stated_cost

EXPS_OF_A_FEATURE = 3.0  # exp, log or tan of each feature of queries and keys: the most expensive maps need 3
LIBRARIES_BYTES = 128 << 20  # of a worker: 60 MiB before its first draw, and what SciPy and BLAS add; torch takes more

COPIES = 4  # of arrays in memory, in a worker: as received, as arrays, and twice as they come with the next task

TILES = 4  # that a method holds at a time at most, such as logits, weights and flags

ARRAYS_OF_INPUTS = 5  # q, k, v and, at their largest, scaled copies of two of them; the width of values counts for two


class PlanCost(NamedTuple):
    """The rough cost of a plan. memory_bytes: of each worker, without the libraries. seconds: of one worker."""

    draws: int
    rows: int
    cells: int
    memory_bytes: int
    seconds: float


class _Work(NamedTuple):
    """The work of one draw: flops of matrix products, exponentials, numbers held at a time (of a batch), rows."""

    flops: float
    exps: float
    numbers: int
    rows: int


def cost(plan: Plan, batch: int | None = None) -> PlanCost:
    """Rows exactly; time and memory from operation counts and rates measured now, within a factor of 2 (and 4 MB).

    batch: draws that torch computes together.
    """
    machine, trials = _rates(), plan.study.scenario.trials
    works = _works(plan, batch)
    seconds = sum(work.flops / machine.gemm + work.exps / machine.exp for work in works)
    cells = len({shape._replace(sizes=()) for shape in plan.shapes})
    memory = _bytes_of(plan, works) + _bytes_of_inputs(plan)
    return PlanCost(len(plan), trials * sum(work.rows for work in works), cells, memory, trials * seconds)


def workers_that_fit(memory_bytes: int) -> int | None:
    """How many workers of this size, with their libraries, fit into the free memory; None if that is unknown."""
    available = available_memory()
    return None if available is None else max(0, available // (memory_bytes + LIBRARIES_BYTES))


def check_fits(plan: Plan, workers: int = 1, batch: int | None = None) -> None:
    """Raise ScenarioError, with the numbers, for a plan that does not fit into the free memory.

    workers: of this machine. Nothing is checked for 0, as the memory of others is not known. batch: as of ``cost``.
    """
    if not workers:
        return
    # This process has loaded its own libraries and inputs.
    more = 0 if workers == 1 else _bytes_of_inputs(plan) + LIBRARIES_BYTES
    needed = workers * (_bytes_of(plan, _works(plan, batch)) + more)
    what = "this sweep" if workers == 1 else f"this sweep with {workers} `workers`"
    fewer = "" if workers == 1 else " or fewer `workers`"
    fewer += " or a smaller `batch`" if batch and plan.study.backend.batched else ""
    fewer += " or fewer `baselines`" if len(plan.study.scenario.baselines) > 1 else ""
    check_memory(needed, what, f"use a smaller `num_projections`, `head_dim`, `seq_len` or order of the map{fewer}")


def _bytes_of(plan: Plan, works: Iterable[_Work]) -> int:
    """Bytes of the largest draw, and of the exact answers that a worker keeps for later draws."""
    kept = {(shape.input, shape.head, shape.scale) for shape in plan.shapes if plan.study.keeps(shape)}
    answers = 8 * sum(head.query_len * head.d_v for _, head, _ in kept)
    return 8 * max(work.numbers for work in works) + min(answers, CACHE_BYTES)


def _bytes_of_inputs(plan: Plan) -> int:
    """Bytes of inputs that are whole in the memory of each process."""
    laws = [law for _, law in plan.study.inputs.values() if isinstance(law, Fixed)]
    return sum(
        COPIES * sum(array.nbytes for array in law.arrays.values()) if isinstance(law, Arrays) else law.opened().nbytes
        for law in laws
    )


def _works(plan: Plan, batch: int | None) -> list[_Work]:
    together = 1
    if batch and plan.study.backend.batched:
        together = max(map(len, batches(plan, range(len(plan)), batch)))
    laws = {name: law for name, (_, law) in plan.study.inputs.items()}
    gradients = {name: law.opened().gradient_draws for name, law in laws.items() if isinstance(law, Fixed)}
    return [_work(plan.study, shape, together, gradients.get(shape.input)) for shape in plan.shapes]


def _work(study: Study, shape: DrawShape, together: int = 1, gradients: int | None = None) -> _Work:
    """gradients: of each head of a fixed input, whose queries are read whole before some are chosen."""
    head, rows_measured = shape.head, study.scenario.rows(shape.head.query_len)
    dim, tokens, entries = head.head_dim, rows_measured + head.seq_len, rows_measured * head.seq_len
    flops, exps = 2.0 * entries * (dim + head.d_v), float(entries)  # exact attention: one exp for each entry
    measured = study.shape(head)._replace(n=rows_measured)
    held, rows = 0, 0
    for batch in study.batches(shape.sizes, head):
        columns, widest, drawn, width = 0, 0, 0, batch.width
        for estimator, sizes in batch.members:
            method = estimator.method
            if estimator.kind == "baseline" and method.needs_all_rows and entries > MATRIX_LIMIT:
                continue
            rows += len(sizes)
            if isinstance(method, LinearAttention):
                fixed, every = (method.num_features(size, dim) for size in (0, sizes[-1].size))
                widest, width = max(widest, every), max(width, fixed, every // 32)
                columns, drawn = columns + every, drawn + method.wrapped.extra_entries(sizes[-1].size, dim)
                continue
            counts = distinct_sizes(sizes)
            flops += 2.0 * sum(
                stated_cost(estimator.name, partial(method.multiplications, measured, n)) or 0.0 for n in counts
            )
            several = together if method.arrays == "batched" else 1
            tiles = TILES * min(TILE_ELEMENTS, entries) if estimator.kind == "method" else 0
            held = max(held, several * method.matrix_entries(measured, counts[-1]) + tiles)
        flops += 2.0 * tokens * columns * (dim + head.d_v + 1)  # projection, and product with [v, 1]
        exps += EXPS_OF_A_FEATURE * tokens * columns
        if columns:  # what is drawn, a summary of [v, 1] for each feature (two more while it grows), features of a tile
            tile = min(max(rows_measured, head.seq_len), max(1, TILE_ELEMENTS // (width * together)))
            features = 3 * widest * min(CHUNK, head.seq_len) if measured.causal else (widest + 2 * width) * tile
            summaries = (columns + 2 * widest) * (head.d_v + 1)
            held = max(held, together * (batch.width * dim + drawn + summaries + features))
    widths = ARRAYS_OF_INPUTS * max(dim, head.d_v), 3 * dim + 2 * head.d_v  # of a query; of a key with its value
    inputs = rows_measured * widths[0] + head.seq_len * widths[1]
    if gradients is not None:  # as stored, and in float64
        inputs += 2 * (head.query_len - rows_measured) * dim
        if rows_measured == head.query_len and shape.scale == study.scenario.value_scale == 1.0:
            inputs += 2 * gradients * rows_measured * head.d_v
    return _Work(flops, exps, together * inputs + held, rows)


def _rates() -> Rates:
    """Measure the rates of this machine in 10 ms, with a matrix product as thin as those of attention."""
    left, right = np.ones((512, 16)), np.ones((16, 512))
    with one_core():
        return rates(lambda: left @ right, 2.0 * 512 * 16 * 512)
