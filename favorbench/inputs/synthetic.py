"""Random inputs."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.inputs.base import Head, InputLaw, Inputs

DEFAULT_SEQ_LENS = (1024,)
DEFAULT_HEAD_DIMS = (16,)


def _grid(seq_lens: tuple[int, ...] | None, head_dims: tuple[int, ...] | None) -> tuple[Head, ...]:
    return tuple(
        Head("-", length, length, dim)
        for length in seq_lens or DEFAULT_SEQ_LENS
        for dim in head_dims or DEFAULT_HEAD_DIMS
    )


@dataclass(frozen=True)
class Gaussian(InputLaw):
    """q, k, v ~ N(0, I): the inputs of the papers and of the blog post."""

    name: ClassVar[str] = "gaussian"
    description: ClassVar[str] = "q, k, v ~ N(0, I), independent"

    def heads(self, seq_lens: tuple[int, ...] | None, head_dims: tuple[int, ...] | None) -> tuple[Head, ...]:
        return _grid(seq_lens, head_dims)

    def draw(self, rng: np.random.Generator, head: Head) -> Inputs:
        shape = (head.seq_len, head.head_dim)
        return Inputs(*(stream.standard_normal(shape) for stream in rng.spawn(3)))


@dataclass(frozen=True)
class Sphere(InputLaw):
    """q and k uniform on the sphere of radius sqrt(d), the typical norm of the Gaussian; v ~ N(0, I)."""

    name: ClassVar[str] = "sphere"
    description: ClassVar[str] = "q, k uniform on the sphere |q| = |k| = sqrt(d), v ~ N(0, I)"

    def heads(self, seq_lens: tuple[int, ...] | None, head_dims: tuple[int, ...] | None) -> tuple[Head, ...]:
        return _grid(seq_lens, head_dims)

    def draw(self, rng: np.random.Generator, head: Head) -> Inputs:
        query, key, value = Gaussian().draw(rng, head)
        radius = head.head_dim**0.5
        query, key = (a * (radius / np.linalg.norm(a, axis=-1, keepdims=True)) for a in (query, key))
        return Inputs(query, key, value)
