"""What a capture is asked for, and what it found."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from favorbench.errors import ScenarioError
from favorbench.formats import shown
from favorbench.models.spool import DTYPES, SUFFIXES, write_heads


class Layer(NamedTuple):
    """One attention of a model: its number in the order of calls, its name, its mask, and what the check said.

    heads: how many were kept. difference: between its own output and the captured rows' exact attention, as a share of
    the largest entry, and limit: what rounding explains; of the head and the input that come closest to it.
    rounding: what storing in 16 bits changed, as a share of the output. reason: why it was refused, "" if it was not.
    """

    layer: int
    name: str
    heads: int
    mask: str
    scaling: float
    difference: float
    limit: float
    rounding: float
    reason: str


class Run(NamedTuple):
    """One forward pass: of which text, its sha256, how many tokens it has, and how it is made."""

    name: str
    sha256: str
    tokens: int
    forward: Callable[[], Any]


@dataclass(frozen=True)
class Choice:
    """What of a model is captured. None: all. last: so many queries, the last ones, on the keys before them all."""

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    last: int | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ScenarioError(f"`dtype` {shown(self.dtype)}: allowed: {', '.join(DTYPES)}")
        if self.last is not None and self.last < 1:
            raise ScenarioError(f"`last` {self.last}: at least 1")


@dataclass(frozen=True, eq=False)
class Captured:
    """Heads of a model: softmax(q k^T / sqrt(d)) v is what its own attention gave, up to rounding.

    query (heads, n, d), key (heads, l, d), value (heads, l, d_v), mapped from disk; bfloat16 as its 16 bits. layer,
    head, text (heads,): which each is. layers: what was found of each layer, refused ones too. meta: what the file
    says beside the arrays.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    layer: np.ndarray
    head: np.ndarray
    text: np.ndarray
    layers: tuple[Layer, ...]
    meta: dict[str, Any]

    @property
    def causal(self) -> bool:
        """Whether a query sees the keys up to its own position only."""
        return self.meta["causal"]

    def save(self, path: str | Path) -> None:
        """Write PATH.npz or PATH.safetensors, in pieces, whole or not at all. Raises ScenarioError, StoreError."""
        check_path(Path(path), self.meta["dtype"])
        names = {"q": self.query, "k": self.key, "v": self.value}
        write_heads(Path(path), names | {"layer": self.layer, "head": self.head, "text": self.text}, self.meta)

    def arrays(self) -> dict[str, np.ndarray]:
        """What a .npz file of it holds, for the inputs of a sweep; bfloat16 as float32, which holds all of these."""
        names = {"q": self.query, "k": self.key, "v": self.value}
        if self.meta["dtype"] == "bfloat16":
            names = {name: (bits.astype(np.uint32) << 16).view(np.float32) for name, bits in names.items()}
        about = {"meta": np.array(json.dumps(self.meta, sort_keys=True))}
        return names | {"layer": self.layer, "head": self.head, "text": self.text} | about


def check_path(path: Path, dtype: str) -> None:
    """Raise ScenarioError for a file that cannot hold captured heads."""
    if path.suffix not in SUFFIXES:
        raise ScenarioError(f"`out` {path}: allowed are files that end in {' or '.join(SUFFIXES)}")
    if dtype == "bfloat16" and path.suffix == ".npz":
        raise ScenarioError(f"`out` {path}: .npz files have no bfloat16: use .safetensors, or `dtype` float16")
