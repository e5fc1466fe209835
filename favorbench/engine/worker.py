"""What a worker process runs: kept apart from the parent's libraries, so that it starts quickly."""

import functools
import multiprocessing
import os
import pickle
import threading
from collections.abc import Sequence

from favorbench.engine.columns import Row
from favorbench.engine.plan import Draw
from favorbench.engine.study import Study
from favorbench.engine.trial import run_draws
from favorbench.numerics.machine import one_core
from favorbench.users import importable_from, keep_importable_here


def packed(study: Study) -> tuple[bytes, str]:
    """A study as workers take it: pickled once, and the folder in which modules of the user's are looked for."""
    return pickle.dumps(study), os.getcwd()


def run_batch(study: tuple[bytes, str], draws: Sequence[Draw]) -> list[list[Row]]:
    """The rows of each draw, computed on one core."""
    return rows_of(_unpacked(*study), draws)


def rows_of(study: Study, draws: Sequence[Draw]) -> list[list[Row]]:
    """The same, of a study that is there already."""
    with one_core():
        return run_draws(study, draws)


@functools.lru_cache(maxsize=2)
def _unpacked(data: bytes, folder: str) -> Study:
    """Once for each process, not for each task."""
    with importable_from(folder):
        study: Study = pickle.loads(data)
        study.check_sources()
    return study


def settle() -> None:
    """For processes of our own: users' modules may import others later, and none outlives a parent that was killed."""
    keep_importable_here()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
