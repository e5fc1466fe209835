"""The interface of a source of inputs."""

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
    """One input that a source offers: its label and shape. value_dim: None is the head_dim."""

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
    """Where queries, keys and values come from. To add a member, write a class and list it in INPUTS.

    A source that reads files states their endings in ``suffixes``, and is built from a path and a label. Others are
    built by name, with their parameters.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    #: Every draw of a head is the same.
    fixed: ClassVar[bool] = False

    @abstractmethod
    def heads(self, seq_lens: tuple[int, ...] | None, head_dims: tuple[int, ...] | None) -> tuple[Head, ...]:
        """The inputs of these lengths and dimensions (None: any). Raises ScenarioError if there are none."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, head: Head, rows: np.ndarray | None = None) -> Inputs:
        """Queries, keys and values of ``head``, in new arrays. A source that reads data ignores rng.

        rows: indices of the queries to keep (all by default).
        """

    def digest(self) -> str | None:
        """SHA-256 of the data, if there are any."""
        return None

    def pinned(self) -> "InputSource":
        """The source bound to its present data: other data in their place raise InputError."""
        return self

    @property
    def effect(self) -> str:
        """The unit of the metric ``effect``, if the data have gradients; else ""."""
        return ""

    def gradients(self, head: Head) -> Float[np.ndarray, "draws query_len value_dim"] | None:
        """The gradients of a model's output with respect to the output of ``head``; None without them."""
        return None

    @property
    def causal(self) -> bool | None:
        """Whether the data declare that a query sees only the keys up to its own position; None if they do not say."""
        return None

    def notes(self) -> tuple[str, ...]:
        """Sentences about the data, such as conversions while reading."""
        return ()
