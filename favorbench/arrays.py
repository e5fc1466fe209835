"""Array types, blocks of features in log space, and the half-angle sine and cosine.

Everything here and in the estimators is written for the Python array API standard through ``array_namespace``.
"""

import importlib
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

# An array of any backend. jaxtyping checks shapes and dtypes of these at run time, under pytest only.
Array = Any

DTYPES = ("float64", "float32")

TILE_ELEMENTS = 1 << 17  # a MiB of float64: a tile and its temporaries stay in the caches of a core


class Features(NamedTuple):
    """One block of a feature matrix, ``values * exp(log_scale)``, one column per projection.

    Kept apart so that nothing overflows: the exponents of queries cancel in the attention quotient and those of keys
    are only ever used relative to their maximum.

    values: (..., n, R) factors that may have a sign; None means 1 everywhere.
    log_scale: (..., n, R), or (..., n, 1) when all features of a row share it.
    fixed: the block does not depend on the projections (an exact polynomial, say) and may have any number of columns:
    it counts once, whatever R, where the others are averaged over R.
    """

    values: Array | None
    log_scale: Array
    fixed: bool = False

    def columns(self, start: int, stop: int) -> "Features":
        """The features of projections start..stop; a fixed block has no part in them."""
        if self.fixed:
            return self
        shared = self.log_scale.shape[-1] == 1
        return self._replace(
            values=None if self.values is None else self.values[..., start:stop],
            log_scale=self.log_scale if shared else self.log_scale[..., start:stop],
        )

    def transposed(self) -> "Features":
        """Features as rows: (..., R, n)."""
        xp = array_namespace(self.log_scale)
        return self._replace(
            values=None if self.values is None else xp.matrix_transpose(self.values),
            log_scale=xp.matrix_transpose(self.log_scale),
        )

    def relative_to(self, log_peak: Array) -> Array:
        """The features themselves, divided by exp(log_peak)."""
        xp = array_namespace(self.log_scale)
        weights = xp.exp(self.log_scale - log_peak)
        return weights if self.values is None else weights * self.values


def cos_sin(angle: Array) -> tuple[Array, Array]:
    """cos and sin of the same angles, through one tangent of the half angle.

    cos a = (1 - t^2) / (1 + t^2), sin a = 2 t / (1 + t^2) with t = tan(a / 2). NumPy's float64 tan is vectorised
    and its sin and cos are not: 3 to 10 times faster, absolute error below 4e-16.
    """
    xp = array_namespace(angle)
    t = xp.tan(angle * 0.5)
    squared = t * t
    reciprocal = 1.0 / (1.0 + squared)
    return (1.0 - squared) * reciprocal, 2.0 * t * reciprocal


def half_squared_norm(x: Array) -> Array:
    """|x|^2 / 2 of each row, shape (..., n, 1)."""
    xp = array_namespace(x)
    return 0.5 * xp.sum(x * x, axis=-1, keepdims=True)


def tile_elements(like: Array) -> int:
    """Numbers in one tile of work on the device of an array."""
    return TILE_ELEMENTS


def to_torch(array: np.ndarray) -> Array:
    """A torch tensor with the numbers and the precision of a NumPy array."""
    return importlib.import_module("torch").from_numpy(np.ascontiguousarray(array))


def from_torch(tensor: Array) -> np.ndarray:
    """A NumPy array with the numbers of a torch tensor on any device."""
    return tensor.detach().cpu().numpy()
