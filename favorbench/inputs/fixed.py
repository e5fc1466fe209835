"""Inputs that are the same in every draw: files, shipped or of the user, and arrays in memory."""

import functools
import hashlib
import os
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from favorbench.errors import InputError, ScenarioError
from favorbench.files import data_directory, file_version, open_regular
from favorbench.inputs.base import Head, Inputs, InputSource
from favorbench.inputs.heads import Heads, Layout, heads_of
from favorbench.inputs.stored import ROLES, Stored, files_of, open_contents, with_about, write_npz
from favorbench.numerics.arrays import on_host


class Fixed(InputSource):
    """Heads that are the same in every draw."""

    fixed = True
    title: str  # for messages

    @abstractmethod
    def opened(self) -> Heads:
        """The heads, without their numbers."""

    @abstractmethod
    def check(self) -> None:
        """Raise InputError for numbers that cannot be measured."""

    @property
    def causal(self) -> bool | None:
        return self.opened().causal

    @property
    def effect(self) -> str:
        return self.opened().effect

    def gradients(self, head: Head) -> np.ndarray | None:
        heads = self.opened()
        return heads.read_gradients(heads.labels.index(head.label), head.query_len, head.seq_len)

    def notes(self) -> tuple[str, ...]:
        return self.opened().notes

    def heads(self, seq_lens: tuple[int, ...] | None, head_dims: tuple[int, ...] | None) -> tuple[Head, ...]:
        heads = self.opened()
        query_len, seq_len, dim, d_v = heads.query.length, heads.key.length, heads.key.dim, heads.value.dim
        for requested in head_dims or ():
            if requested != dim:
                raise ScenarioError(
                    f"`head_dim` {requested} was requested, but {self.title} has head_dim {dim}: leave `head_dim` out"
                )
        for requested in seq_lens or ():
            if requested > min(query_len, seq_len):
                raise ScenarioError(
                    f"`seq_len` {requested} was requested, but {self.title} has {min(query_len, seq_len)} tokens: "
                    f"ask for at most that, or leave `seq_len` out"
                )
        self.check()
        lengths = [(n, n) for n in seq_lens] if seq_lens else [(query_len, seq_len)]
        return tuple(Head(label, n, m, dim, None if d_v == dim else d_v) for n, m in lengths for label in heads.labels)

    def draw(self, rng: np.random.Generator, head: Head, rows: np.ndarray | None = None) -> Inputs:
        heads = self.opened()
        inputs = heads.read(heads.labels.index(head.label), head.query_len, head.seq_len)
        return inputs if rows is None else inputs._replace(query=inputs.query[rows])


@dataclass(frozen=True)
class File(Fixed):
    """Heads of a file with arrays q, k, v (or query, key, value), before any scaling by 1/sqrt(d).

    Shapes (heads, L, d), (batch, heads, L, d) or (L, d), or with the layout "L,heads,d" (L, heads, d) and (batch, L,
    heads, d); each head is one input. Lengths of q and k may differ. Integer arrays ``layer`` and ``head``, one number
    for each head, give the labels. Only one head at a time is in memory, except for a compressed .npz. Nothing is ever
    unpickled. sha256: the digest that the file must have whenever it is read, in any process; "" for any.
    """

    path: str
    label: str = ""
    layout: Layout = "heads,L,d"
    sha256: str = ""
    name = "file"
    description = (
        "PATH.npz, PATH.safetensors or a folder of .npy files with arrays q, k, v: (heads, L, d), (batch, heads, L, "
        "d), (L, d); --layout L,heads,d for (L, heads, d), (batch, L, heads, d)"
    )
    suffixes = (".npz", ".safetensors")

    @property
    def title(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.label or self.path

    def pinned(self) -> "File":
        return replace(self, sha256=_digest(self.path, file_versions(self.path)))

    def opened(self) -> Heads:
        versions = file_versions(self.path)
        if self.sha256 and _digest(self.path, versions) != self.sha256:
            raise InputError(
                f"inputs {self.path!r} have changed since they were first read: put the file back and run the same "
                "command again, or give another `out` for the new file"
            )
        return _opened(self.path, self.layout, versions)

    def check(self) -> None:
        _check(self.path, self.layout, file_versions(self.path))

    def digest(self) -> str:
        return self.sha256 or _digest(self.path, file_versions(self.path))

    def draw(self, rng: np.random.Generator, head: Head, rows: np.ndarray | None = None) -> Inputs:
        before = file_versions(self.path)
        try:
            return super().draw(rng, head, rows)
        finally:
            if file_versions(self.path) != before:
                self.opened()  # the digest decides


def file_versions(path: str) -> tuple[tuple[str, ...], ...]:
    """Values that change when a file, or one in a folder, changes; cached results are keyed by them."""
    try:
        return tuple((os.path.realpath(file), *file_version(file)) for file in files_of(path))
    except OSError as error:
        raise InputError(f"cannot read inputs {path!r}: {error.strerror}") from None


@functools.lru_cache(maxsize=32)
def _digest(path: str, versions: tuple[tuple[str, ...], ...]) -> str:
    """The sha256 of a file; of a folder, that of the names and digests of its .npy files."""
    digests = {}
    for file in files_of(path):
        with open_regular(file, "inputs") as opened:
            digests[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
    lines = "".join(f"{name} {digest}\n" for name, digest in digests.items())
    return hashlib.sha256(lines.encode()).hexdigest() if Path(path).is_dir() else digests[Path(path).name]


@functools.lru_cache(maxsize=8)
def _opened(path: str, layout: Layout, versions: tuple[tuple[str, ...], ...]) -> Heads:
    return heads_of(path, open_contents(path), layout)


@functools.lru_cache(maxsize=8)
def _check(path: str, layout: Layout, versions: tuple[tuple[str, ...], ...]) -> None:
    _opened(path, layout, versions).check()


@dataclass(frozen=True, eq=False)
class Arrays(Fixed):
    """Heads in memory: arrays of NumPy, torch or any library that NumPy reads; shapes as for ``File``."""

    title: str
    arrays: Mapping[str, np.ndarray]
    layout: Layout = "heads,L,d"
    name = "arrays"
    description = "queries, keys and values in memory"

    @staticmethod
    def of(title: str, given: Any, layout: Layout = "heads,L,d") -> "Arrays":
        """Make inputs of (q, k, v), of a mapping of the names in a file to arrays, or of captured heads."""
        parts = given.arrays() if callable(getattr(given, "arrays", None)) else given
        if isinstance(parts, tuple | list) and len(parts) == 3:
            parts = dict(zip("qkv", parts, strict=True))
        if not isinstance(parts, Mapping) or any(parts.get(n[0], parts.get(n)) is None for n in ROLES):
            raise ScenarioError(f"`inputs` {title!r}: a {type(given).__name__} was given; allowed: arrays (q, k, v)")
        if any(np.ma.is_masked(part) for part in parts.values()):
            raise ScenarioError(f"`inputs` {title!r}: arrays with masked entries; give the tokens that are not masked")
        try:
            hosts = {str(name): on_host(part) for name, part in parts.items()}
        except Exception as error:  # a library may raise anything
            raise ScenarioError(f"`inputs` {title!r}: not arrays: {error}") from None
        used = {*ROLES, *"qkv"}  # those of other names may hold anything
        kept = {name: host for name, host in hosts.items() if name in used or not host.dtype.hasobject}
        law = Arrays(title, kept, layout)
        law.check()
        return law

    def opened(self) -> Heads:
        held = {name: Stored.of(array) for name, array in self.arrays.items()}
        return heads_of(self.title, with_about(held), self.layout)

    def check(self) -> None:
        self.opened().check()

    def digest(self) -> str:
        """SHA-256 of the file that ``numpy.savez(path, q=q, k=k, v=v)`` writes, so that both share random streams.

        In C order, as arrays of equal numbers are the same inputs. Not cached: the caller may change the arrays.
        """
        with tempfile.TemporaryFile() as file:
            write_npz(file, {name: np.asarray(array, order="C") for name, array in self.arrays.items()})
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()


class Shipped(NamedTuple):
    """A file of scenarios/data and its description. The README.md there has source, licence and hash."""

    file: str
    description: str

    @property
    def path(self) -> Path:
        """Where the file is."""
        return data_directory() / "data" / self.file


SHIPPED = {
    "minilm": Shipped(
        "minilm-cc0.npz", "four real heads of all-MiniLM-L6-v2 on 512 tokens (L0H1, L0H5, L5H0, L5H8), d = 32"
    ),
}
