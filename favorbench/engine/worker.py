"""What a worker process runs: kept apart from the parent's libraries, so that it starts quickly."""

import functools
import multiprocessing
import os
import threading
from collections.abc import Sequence

import threadpoolctl

from favorbench.engine.plan import Draw
from favorbench.engine.scenario import Scenario
from favorbench.engine.trial import Row, run_draws
from favorbench.numerics.machine import keep_freed_memory


def run_batch(scenario: Scenario, draws: Sequence[Draw]) -> list[list[Row]]:
    """The rows of each draw; whatever process this runs in computes on one core from now on."""
    _settle()
    return run_draws(scenario, draws)


@functools.cache
def _settle() -> None:
    keep_freed_memory()
    threadpoolctl.threadpool_limits(1)


def end_with_parent() -> None:
    """A worker must not outlive a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
