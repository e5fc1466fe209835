"""What an input law is."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from favorbench.numerics.arrays import Float


class Inputs(NamedTuple):
    """Queries, keys and values of one head, float64, at scale 1."""

    query: Float[np.ndarray, "query_len head_dim"]
    key: Float[np.ndarray, "seq_len head_dim"]
    value: Float[np.ndarray, "seq_len value_dim"]


class Head(NamedTuple):
    """One input that a law offers: its label and its shape. value_dim: of the values, None as the head_dim."""

    label: str
    query_len: int
    seq_len: int
    head_dim: int
    value_dim: int | None = None

    @property
    def d_v(self) -> int:
        """The dimension of the values."""
        return self.head_dim if self.value_dim is None else self.value_dim


def same_place(label: str, other: str) -> bool:
    """Whether two labels name the same layer and head, on whatever text: "L0H5" and "L0H5@cc0"."""
    return label.partition("@")[0] == other.partition("@")[0]


class InputSource(ABC):
    """Where queries, keys and values come from. A member is one file and one line in INPUTS.

    A law that reads files states their endings in ``suffixes``, and is built from a path and a label; any other is
    built by its name, with the parameters that it has.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    #: Every draw of a head is the same.
    fixed: ClassVar[bool] = False

    @abstractmethod
    def heads(self, seq_lens: tuple[int, ...] | None, head_dims: tuple[int, ...] | None) -> tuple[Head, ...]:
        """The inputs there are for the lengths and dimensions asked for (None: not asked).

        Raises ScenarioError where they cannot be had.
        """

    @abstractmethod
    def draw(self, rng: np.random.Generator, head: Head, rows: np.ndarray | None = None) -> Inputs:
        """Queries, keys and values of ``head``, in new arrays. A law that reads data ignores rng.

        rows: indices of the queries that are wanted (all by default); the others are not kept.
        """

    def digest(self) -> str | None:
        """SHA-256 of the data behind the law, if there are any."""
        return None

    def pinned(self) -> "InputSource":
        """The law, bound to the data that are behind it now: other data in their place raise InputError."""
        return self

    @property
    def causal(self) -> bool | None:
        """Whether the data say that a query sees the keys up to its own position only; None where they do not say."""
        return None

    def notes(self) -> tuple[str, ...]:
        """What is to be known of the data, in words: what was converted while reading, say."""
        return ()
