"""Named random streams: the same names give the same numbers, in any order, in any process."""

import copy
import hashlib
import json
from collections.abc import Callable, Sequence

import numpy as np

from favorbench.numerics.arrays import Array


def stream(seed: int, *names: str | int | float) -> np.random.Generator:
    """The generator that belongs to ``names`` under ``seed``.

    Streams of different names are independent (SHA-256 of the names seeds a PCG64). A draw names its streams by what
    it is, never by when it runs, so the numbers do not depend on the order of the draws or the number of workers.
    """
    digest = hashlib.sha256(json.dumps([seed, *names]).encode()).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "big"))))


class Streams:
    """The generators of draws that are computed together, and where what they give belongs."""

    def __init__(self, generators: Sequence[np.random.Generator], array: Callable[[Sequence[np.ndarray]], Array]):
        self.generators, self._array = tuple(generators), array

    @staticmethod
    def of(generator: np.random.Generator) -> "Streams":
        """One generator, whose numbers stay on the host without a leading axis."""
        return Streams((generator,), lambda hosts: hosts[0])

    def for_sizes(self, count: int) -> "list[Streams]":
        """One for each of so many sizes, all with the same numbers: what is drawn for one size depends on no other."""
        copies = [Streams(copy.deepcopy(self.generators), self._array) for _ in range(count - 1)]
        return [*copies, self]

    def draw(self, sample: Callable[[np.random.Generator], np.ndarray | None]) -> Array:
        """A sample of each draw, (...) or (draws, ...), on the device; None where nothing is drawn."""
        hosts = [sample(generator) for generator in self.generators]
        return None if hosts[0] is None else self._array(hosts)  # pyright: ignore[reportArgumentType]
