"""Array types, blocks of features in log space, and the half-angle sine and cosine.

Everything here and in the estimators is written for the Python array API standard through ``array_namespace``.
"""

import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np
from array_api_compat import device

from favorbench.errors import InputError

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Float
else:

    class Float:
        """Any array."""

        def __class_getitem__(cls, shape: object) -> Any:
            return Any


# An array of any backend. jaxtyping checks shapes and dtypes of these at run time, under pytest only.
Array = Any

TILE_ELEMENTS = 3 << 16  # 1.5 MiB of float64: the cost of calls is small, and two cores can share a cache

GPU_TILE_ELEMENTS = 1 << 26  # half a GiB of float64: fewer and larger kernels


def array_namespace(*arrays: Array) -> Any:
    """The namespace of arrays in the array API: NumPy itself for its own, a wrapper of array_api_compat for others.

    Raises TypeError for arrays of two libraries.
    """
    if all(type(array) is np.ndarray or isinstance(array, np.generic) for array in arrays):
        return np
    return array_api_compat.array_namespace(*arrays)


class Features(NamedTuple):
    """One block of a feature matrix, ``values * exp(log_scale)``, one column per projection.

    The factors are separate so that nothing overflows: the exponents of queries cancel in the attention quotient, and
    those of keys are only used relative to their maximum.

    Parameters
    ----------
    values : array (..., n, R) or None
        Factors of any sign; None means 1 everywhere.
    log_scale : array (..., n, R) or (..., n, 1)
        Logs of positive factors, one for each feature or one for each row.
    fixed : bool
        The block does not depend on the projections (an exact polynomial, for instance) and may have any number of
        columns. It counts once for every R, while other blocks are averaged over R.
    """

    values: Array | None
    log_scale: Array
    fixed: bool = False

    def columns(self, start: int, stop: int) -> "Features":
        """The features of projections start..stop; all of a fixed block."""
        if self.fixed:
            return self
        shared = self.log_scale.shape[-1] == 1
        return self._replace(
            values=None if self.values is None else self.values[..., start:stop],
            log_scale=self.log_scale if shared else self.log_scale[..., start:stop],
        )

    def times(self, log_factor: Array | float) -> "Features":
        """The features times exp(log_factor), of every row (..., n, 1) or of all."""
        return self._replace(log_scale=self.log_scale + log_factor)

    def copied(self) -> "Features":
        """The same in arrays of their own."""
        return self._replace(values=None if self.values is None else 1 * self.values, log_scale=1 * self.log_scale)

    def transposed(self) -> "Features":
        """Features as rows: (..., R, n)."""
        return self._replace(
            values=None if self.values is None else self.values.mT,
            log_scale=self.log_scale.mT,
        )

    def relative_to(self, log_peak: Array) -> Array:
        """The features themselves, divided by exp(log_peak)."""
        xp = array_namespace(self.log_scale)
        if self.values is not None and self.log_scale.shape[-1] == 1 and bool(xp.all(self.log_scale == log_peak)):
            return self.values
        weights = xp.exp(self.log_scale - log_peak if bool(xp.any(log_peak)) else self.log_scale)
        return weights if self.values is None else weights * self.values


def cos_sin(angle: Array) -> tuple[Array, Array]:
    """cos and sin of the same angles, through one tangent of the half angle.

    cos a = 2 / (1 + t^2) - 1, sin a = 2 t / (1 + t^2) with t = tan(a / 2). NumPy's float64 tan is vectorised
    and its sin and cos are not: 3 to 10 times faster, absolute error below 4e-16.
    """
    if getattr(angle, "requires_grad", False):  # a gradient needs the values that are overwritten below
        return angle.cos(), angle.sin()
    t = array_namespace(angle).tan(angle * 0.5)
    half = t * t  # from here in place: every pass that allocates costs a tenth
    half += 1.0
    half = 2.0 / half
    t *= half
    half -= 1.0
    return half, t


def half_squared_norm(x: Array) -> Array:
    """Return |x|^2 / 2 of each row: positive features subtract it from their exponents.

    Parameters
    ----------
    x : array (..., n, d)
        Tokens, of NumPy or torch.

    Returns
    -------
    array (..., n, 1)

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> fb.half_squared_norm(np.array([[3.0, 4.0]]))
    array([[12.5]])
    """
    return 0.5 * array_namespace(x).vecdot(x, x)[..., None]


def projected(x: Array, omega: Array) -> Array:
    """x omega^T, (..., n, R), in column-major order.

    Maxima, products and quotients of features then run along the tokens, which are many: array libraries give a result
    the memory order of its arguments.
    """
    return (omega @ x.mT).mT


def to_column_major(a: Array) -> Array:
    """The same (..., n, m) array, with the entries of a column adjacent in memory."""
    xp = array_namespace(a)
    *leading, rows, columns = a.shape
    flat = xp.reshape(a.mT, (*leading, columns * rows))
    return xp.reshape(flat, (*leading, columns, rows)).mT


def device_elements(like: Array) -> int:
    """The numbers in a tile on the device of an array."""
    return TILE_ELEMENTS if str(device(like)).startswith("cpu") else GPU_TILE_ELEMENTS


def tile_elements(like: Array) -> int:
    """The numbers in a tile on the device of an array, for each entry of its leading axes."""
    return max(1, device_elements(like) // math.prod(like.shape[:-2]))


def as_like(host: np.ndarray, other: Array) -> Array:
    """A host array with the library, the device and the dtype of another one."""
    return array_namespace(other).asarray(host, dtype=other.dtype, device=device(other))


def moved(what: str, array: Array, other: Array) -> Array:
    """An array of any library in the library and on the device of another one, in its own precision.

    Raises InputError, with the name ``what``, if that fails.
    """
    xp = array_namespace(other)
    try:
        same = array_api_compat.is_array_api_obj(array) and array_namespace(array) is xp
        return array_api_compat.to_device(array if same else xp.asarray(on_host(array)), device(other))
    except Exception as error:  # libraries raise anything for arrays of another
        raise InputError(f"{what} is {kind_of(array)}, and cannot be moved to {kind_of(other)}: {error}") from None


def kind_of(array: Any) -> str:
    """ "of NumPy", "of torch on cuda:0": an array's library and device; of anything else its type."""
    if isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray | np.matrix):
        return "of NumPy"
    if isinstance(array, np.ndarray) or not array_api_compat.is_array_api_obj(array):
        return f"a {type(array).__name__}"
    return f"of {type(array).__module__.partition('.')[0]} on {device(array)}"


def to_backend_of(host: np.ndarray, other: Array) -> Array:
    """A host array with the library and the device of another one, and its own dtype."""
    writable = host if host.flags.writeable else host.copy()  # torch warns of read-only arrays
    return array_namespace(other).asarray(writable, device=device(other))


def rows_at(rows: Array, index: Array) -> Array:
    """The rows (..., l, c) at indices (..., m), or (..., a, b): (..., m, c). Whole rows are copied, not entries."""
    xp, (*leading, length, columns) = array_namespace(rows), rows.shape
    if leading:
        first = length * xp.arange(math.prod(leading), device=device(index))
        index = index + xp.reshape(first, (*leading, *(1,) * (index.ndim - len(leading))))
    taken = xp.take(xp.reshape(rows, (-1, columns)), xp.reshape(index, (-1,)), axis=0)
    return xp.reshape(taken, (*index.shape, columns))


def masked(logits: Array, seen: Array) -> Array:
    """The logits where a flag is set, and -inf elsewhere."""
    xp = array_namespace(logits)
    return xp.where(seen, logits, -xp.inf)


def softmax(logits: Array) -> Array:
    """exp(logits) divided by its sum along the last axis."""
    xp = array_namespace(logits)
    weights = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    return weights / xp.sum(weights, axis=-1, keepdims=True)


def log_softmax(logits: Array, axis: int = -1) -> Array:
    """The log of exp(logits), divided by its sum along an axis."""
    xp = array_namespace(logits)
    shifted = logits - xp.max(logits, axis=axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


def indices_by_share(shares: Array, uniforms: Array) -> Array:
    """Indices (..., m) in proportion to shares (..., l) that sum to 1, by uniform numbers (..., m): with repetition.

    shares: in float64, as of sums in half precision many are equal, and their keys are never drawn.
    """
    xp = array_namespace(shares)
    below = xp.cumulative_sum(shares, axis=-1)[..., None, :] < uniforms[..., :, None]
    return xp.clip(xp.sum(xp.astype(below, xp.int8), axis=-1, dtype=xp.int64), 0, shares.shape[-1] - 1)


def take_from(table: np.ndarray, index: Array) -> Array:
    """table[index] for an array of whole numbers in floating point, in the dtype of that array."""
    xp = array_namespace(index)
    flat = xp.reshape(xp.astype(index, xp.int64), (-1,))
    return xp.reshape(xp.take(as_like(table, index), flat), index.shape)


def largest(a: Array, count: int) -> Array:
    """Indices of the largest entries along the last axis, the largest first: (..., count)."""
    if not isinstance(a, np.ndarray):
        return a.topk(count, dim=-1).indices
    first = a.shape[-1] - count
    index = np.argpartition(a, min(first, a.shape[-1] - 1), axis=-1)[..., first:]
    order = np.argsort(-np.take_along_axis(a, index, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(index, order, axis=-1)


def scattered(flags: Array, index: Array, length: int) -> Array:
    """An array (..., length) with the flags at these indices along the last axis, (..., k), and False elsewhere."""
    xp = array_namespace(flags)
    result = xp.zeros((*index.shape[:-1], length), dtype=xp.bool, device=device(flags))
    if isinstance(result, np.ndarray):
        np.put_along_axis(result, index, flags, axis=-1)
        return result
    return result.scatter(-1, index, flags)


def of_python(given: Any) -> Any:
    """Numbers of NumPy, alone, in lists or in an array (n,), as those of Python; a range as a list."""
    if isinstance(given, np.generic | np.ndarray) and given.ndim < 2:
        return given.tolist()
    return [of_python(part) for part in given] if isinstance(given, list | tuple | range) else given


def on_host(array: Array) -> np.ndarray:
    """An array of any library as a NumPy array, which has no bfloat16: float32 holds these numbers exactly."""
    if not hasattr(array, "detach"):
        return np.asarray(array)
    host = array.detach().cpu()
    return (host.float() if str(host.dtype) == "torch.bfloat16" else host).numpy()
