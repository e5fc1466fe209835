"""Named random streams: the same names give the same numbers, in any order, in any process."""

import hashlib
import json

import numpy as np


def stream(seed: int, *names: str | int | float) -> np.random.Generator:
    """The generator that belongs to ``names`` under ``seed``.

    Streams of different names are independent (SHA-256 of the names seeds a PCG64). A draw names its streams by what
    it is, never by when it runs, so the numbers do not depend on the order of the draws or the number of workers.
    """
    digest = hashlib.sha256(json.dumps([seed, *names]).encode()).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "big"))))
