"""Random inputs."""

from dataclasses import dataclass

import numpy as np

from favorbench.inputs.base import Head, Inputs, InputSource
from favorbench.parameters import check_parameters, positive

DEFAULT_SEQ_LENS = (1024,)
DEFAULT_HEAD_DIMS = (16,)


def _grid(seq_lens: tuple[int, ...] | None, head_dims: tuple[int, ...] | None) -> tuple[Head, ...]:
    return tuple(
        Head("-", length, length, dim)
        for length in seq_lens or DEFAULT_SEQ_LENS
        for dim in head_dims or DEFAULT_HEAD_DIMS
    )


@dataclass(frozen=True)
class Gaussian(InputSource):
    """q, k ~ N(0, std^2 I), v ~ N(0, I): with std = 1 the inputs of the papers and of the blog post."""

    std: float = positive(1.0, most=1e6)
    name = "gaussian"
    description = "q, k ~ N(0, std^2 I), v ~ N(0, I), independent; std = 1, or gaussian(std=0.5)"

    def __post_init__(self) -> None:
        check_parameters(self)

    def heads(self, seq_lens: tuple[int, ...] | None, head_dims: tuple[int, ...] | None) -> tuple[Head, ...]:
        return _grid(seq_lens, head_dims)

    def draw(self, rng: np.random.Generator, head: Head, rows: np.ndarray | None = None) -> Inputs:
        shape, streams = (head.seq_len, head.head_dim), rng.spawn(3)
        query = streams[0].standard_normal(shape)
        query = query if rows is None else query[rows]
        inputs = Inputs(query, streams[1].standard_normal(shape), streams[2].standard_normal(shape))
        if self.std != 1:
            for array in (inputs.query, inputs.key):
                array *= self.std
        return inputs


@dataclass(frozen=True)
class Sphere(InputSource):
    """q and k uniform on the sphere of radius sqrt(d), the typical norm of the Gaussian; v ~ N(0, I)."""

    name = "sphere"
    description = "q, k uniform on the sphere |q| = |k| = sqrt(d), v ~ N(0, I)"

    def heads(self, seq_lens: tuple[int, ...] | None, head_dims: tuple[int, ...] | None) -> tuple[Head, ...]:
        return _grid(seq_lens, head_dims)

    def draw(self, rng: np.random.Generator, head: Head, rows: np.ndarray | None = None) -> Inputs:
        inputs = Gaussian().draw(rng, head, rows)
        for array in (inputs.query, inputs.key):
            array *= head.head_dim**0.5 / np.linalg.norm(array, axis=-1, keepdims=True)
        return inputs
