"""Named random streams: the same names give the same numbers, in any order, in any process."""

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from favorbench.numerics.arrays import Array, array_namespace


def stream(seed: int, *names: str | int | float) -> np.random.Generator:
    """Return the generator that belongs to ``names`` under ``seed``.

    Streams of different names are independent (SHA-256 of the names seeds a PCG64). The names of a draw's streams
    describe the draw, never when it runs, so the numbers depend neither on the order of draws nor on the workers.
    """
    digest = hashlib.sha256(json.dumps([seed, *names]).encode()).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "big"))))


class Streams:
    """The generators of draws that are computed together, and how their numbers become arrays."""

    def __init__(self, generators: Sequence[np.random.Generator], array: Callable[[Sequence[np.ndarray]], Array]):
        self.generators, self._array = tuple(generators), array

    @staticmethod
    def of(generator: np.random.Generator) -> "Streams":
        """Wrap one generator, whose numbers stay on the host without a leading axis."""
        return Streams((generator,), lambda hosts: hosts[0])

    def for_sizes(self, count: int) -> "list[Streams]":
        """Return one for each of ``count`` sizes, all with the same numbers: no size depends on another."""
        copies = [Streams(copy.deepcopy(self.generators), self._array) for _ in range(count - 1)]
        return [*copies, self]

    def draw(self, sample: Callable[[np.random.Generator], Any], like: Array = None) -> Array:
        """Draw from every generator: (...) or (draws, ...), on the device, in the precision of ``like`` if given."""
        hosts = [sample(generator) for generator in self.generators]
        if hosts[0] is None:  # a map that draws nothing
            return None
        drawn = self._array(hosts)
        return drawn if like is None else array_namespace(drawn).astype(drawn, like.dtype, copy=False)
