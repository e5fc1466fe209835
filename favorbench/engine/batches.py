"""Which draws are computed together."""

from collections.abc import Sequence

from favorbench.engine.plan import Draw
from favorbench.engine.scenario import Scenario
from favorbench.inputs import Head
from favorbench.numerics.arrays import GPU_TILE_ELEMENTS
from favorbench.numerics.backend import Backend


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
