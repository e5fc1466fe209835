"""Which draws are computed together."""

from collections.abc import Iterable, Iterator

from favorbench.engine.columns import Row
from favorbench.engine.plan import Draw, Plan
from favorbench.engine.study import Study
from favorbench.engine.trial import run_draws
from favorbench.inputs import Head
from favorbench.numerics.arrays import GPU_TILE_ELEMENTS
from favorbench.numerics.backend import Backend
from favorbench.numerics.machine import one_core

Batch = list[Draw]


def batches(plan: Plan, missing: Iterable[int], batch: int | None) -> Iterator[Batch]:
    """The missing draws of a plan, those of one shape together, ``batch`` at a time, or one at a time for NumPy.

    batch: None is one at a time on a CPU, and on a GPU as many as fill it.
    """
    scenario, backend = plan.study.scenario, plan.study.backend
    if not backend.batched:
        for index in missing:
            yield [plan[index]]
        return
    groups: dict[tuple, list[int]] = {}
    for index in missing:
        draw = plan[index]
        groups.setdefault((draw.head._replace(label=""), draw.dtype, draw.sizes), []).append(index)
    for (head, _, sizes), members in groups.items():
        size = batch or _automatic_batch(backend, head, sizes[-1])
        placed = scenario.causal or any(method.needs_positions for method in plan.study.methods)
        if placed and scenario.rows(head.query_len) < head.query_len:
            size = 1  # each draw has query rows of its own, and with them a mask of its own
        for start in range(0, len(members), size):
            yield [plan[index] for index in members[start : start + size]]


def rows_of_batch(study: Study, batch: Batch) -> list[list[Row]]:
    """Compute the rows of each draw of a batch, on one core."""
    with one_core():
        return run_draws(study, batch)


def _automatic_batch(backend: Backend, head: Head, width: int) -> int:
    """On a GPU as many draws as make two full tiles of features, in at most a quarter of its free memory."""
    free = backend.free_memory()
    if free is None:
        return 1
    tokens = head.query_len + head.seq_len
    fits = free // 4 // (8 * tokens * (6 * head.head_dim + 2))
    return max(1, min(fits, 2 * GPU_TILE_ELEMENTS // (head.seq_len * width)))
