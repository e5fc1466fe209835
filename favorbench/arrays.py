"""Array types, blocks of features in log space, and the half-angle sine and cosine.

Everything here and in the estimators is written for the Python array API standard through ``array_namespace``.
"""

import contextlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
from array_api_compat import device

from favorbench.errors import ScenarioError

# An array of any backend. jaxtyping checks shapes and dtypes of these at run time, under pytest only.
Array = Any

#: Precisions of an estimator, by backend. tf32 is float32 whose matrix products round their factors to 10 bits.
DTYPES = {
    "numpy": ("float64", "float32"),
    "torch": ("float64", "float32", "tf32", "bfloat16", "float16"),
}

TILE_ELEMENTS = 3 << 16  # 1.5 MiB of float64: calls cost nothing beside their work, and two cores can share a cache
GPU_TILE_ELEMENTS = 1 << 26  # half a GiB of float64: fewer and larger kernels


def array_namespace(*arrays: Array) -> Any:
    """The namespace of arrays in the array API: NumPy itself for its own, a wrapper of array_api_compat for others.

    Raises TypeError for arrays of two libraries.
    """
    if all(type(array) is np.ndarray for array in arrays):
        return np
    return array_api_compat.array_namespace(*arrays)


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
        if self.values is not None and self.log_scale.shape[-1] == 1 and bool(xp.all(self.log_scale == log_peak)):
            return self.values
        weights = xp.exp(self.log_scale - log_peak if bool(xp.any(log_peak)) else self.log_scale)
        return weights if self.values is None else weights * self.values


def cos_sin(angle: Array) -> tuple[Array, Array]:
    """cos and sin of the same angles, through one tangent of the half angle.

    cos a = 2 / (1 + t^2) - 1, sin a = 2 t / (1 + t^2) with t = tan(a / 2). NumPy's float64 tan is vectorised
    and its sin and cos are not: 3 to 10 times faster, absolute error below 4e-16.
    """
    t = array_namespace(angle).tan(angle * 0.5)
    half = t * t  # from here in place: every pass that allocates costs a tenth
    half += 1.0
    half = 2.0 / half
    t *= half
    half -= 1.0
    return half, t


def half_squared_norm(x: Array) -> Array:
    """|x|^2 / 2 of each row, shape (..., n, 1)."""
    return 0.5 * array_namespace(x).vecdot(x, x)[..., None]


def projected(x: Array, omega: Array) -> Array:
    """x omega^T, (..., n, R), with each projection of all tokens side by side in memory, as ``columns_first`` has it.

    Maxima, products and quotients of features then run along the tokens, which are many: array libraries give a result
    the order of its arguments.
    """
    xp = array_namespace(x)
    return xp.matrix_transpose(omega @ xp.matrix_transpose(x))


def columns_first(a: Array) -> Array:
    """The same (..., n, m) array, with each column side by side in memory."""
    xp = array_namespace(a)
    *leading, rows, columns = a.shape
    flat = xp.reshape(xp.matrix_transpose(a), (*leading, columns * rows))
    return xp.matrix_transpose(xp.reshape(flat, (*leading, columns, rows)))


def tile_elements(like: Array) -> int:
    """Numbers in one tile of work, of all leading axes of an array together, on its device."""
    elements = TILE_ELEMENTS if str(device(like)).startswith("cpu") else GPU_TILE_ELEMENTS
    return max(1, elements // math.prod(like.shape[:-2]))


@dataclass(frozen=True)
class Backend:
    """Where estimators compute: an array library and a device.

    Everything is drawn on the host in NumPy float64 and moved once; NumPy holds one draw at a time, torch a batch.
    """

    name: str = "numpy"
    device: str = "cpu"

    def check(self, dtypes: Iterable[str]) -> None:
        """Raise ScenarioError, in one line, if the library, the device or a precision is not to be had here."""
        allowed = DTYPES[self.name]
        for dtype in dtypes:
            if dtype not in allowed:
                hint = "; --backend torch has it" if dtype in DTYPES["torch"] else ""
                raise ScenarioError(f"--dtype {dtype}: {self.name} has {', '.join(allowed)}{hint}")
        if self.name == "numpy":
            if self.device != "cpu":
                raise ScenarioError(f"--device {self.device}: NumPy computes on cpu only; add --backend torch")
            return
        if importlib.util.find_spec("torch") is None:
            raise ScenarioError("--backend torch: torch is not installed: pip install 'favorbench[torch]'")
        kind, _, number = self.device.partition(":")
        cuda = importlib.import_module("torch").cuda
        if kind == "cuda" and not cuda.is_available():
            raise ScenarioError(
                f"--device {self.device}: torch finds no CUDA device here; use --device cpu, or a CUDA build of torch"
            )
        if kind == "cuda" and int(number or 0) >= cuda.device_count():
            raise ScenarioError(f"--device {self.device}: there are {cuda.device_count()} CUDA devices, from cuda:0 on")
        if kind != "cuda" and "tf32" in dtypes:
            raise ScenarioError("--dtype tf32 exists on CUDA devices only; use float32 or bfloat16")

    @property
    def batched(self) -> bool:
        """Whether arrays have a leading axis of draws."""
        return self.name == "torch"

    def array(self, hosts: Sequence[np.ndarray]) -> Array:
        """Host arrays of equal shape, one for each draw, as one array on the device."""
        if self.name == "numpy":
            (host,) = hosts
            return host
        return to_torch(np.stack(hosts)).to(self.device)

    def cast(self, array: Array, dtype: str) -> Array:
        """An array in another precision; itself if it has it."""
        if self.name == "numpy":
            return array.astype(dtype, copy=False)
        torch = importlib.import_module("torch")
        return array.to(torch.float32 if dtype == "tf32" else getattr(torch, dtype))

    def host(self, array: Array) -> np.ndarray:
        """An array back on the host."""
        return array if self.name == "numpy" else from_torch(array)

    @contextlib.contextmanager
    def precision(self, dtype: str) -> Iterator[None]:
        """torch on one core, as NumPy is; on CUDA matrix products in full precision, unless dtype is tf32."""
        torch = sys.modules.get("torch")
        if torch is None:
            yield
            return
        threads, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.backends.cuda.matmul.allow_tf32 = tf32

    def free_memory(self) -> int | None:
        """Free bytes of a CUDA device; None on a CPU."""
        if not self.device.startswith("cuda"):
            return None
        return int(importlib.import_module("torch").cuda.mem_get_info(self.device)[0])

    def has_fused_attention(self) -> bool:
        """Whether torch's scaled_dot_product_attention can be had."""
        return self.name == "torch" or importlib.util.find_spec("torch") is not None

    def fused_attention(self, query: Array, key: Array, value: Array) -> Array:
        """torch's scaled_dot_product_attention of (L, d) arrays, NumPy arrays through their own memory."""
        torch = importlib.import_module("torch")
        tensors = [to_torch(a) if isinstance(a, np.ndarray) else a for a in (query, key, value)]
        with torch.inference_mode():
            batched = (tensor[None, None] for tensor in tensors)
            return torch.nn.functional.scaled_dot_product_attention(*batched)[0, 0]

    def synchronise(self) -> None:
        """Wait until a CUDA device has done all it was asked."""
        if self.device != "cpu":
            importlib.import_module("torch").cuda.synchronize(self.device)

    @contextlib.contextmanager
    def peak_memory(self) -> Iterator[Callable[[], int | None]]:
        """A function for the most bytes that were allocated inside at a time on a CUDA device; None on a CPU."""
        if self.device == "cpu":
            yield lambda: None
            return
        cuda = importlib.import_module("torch").cuda
        cuda.reset_peak_memory_stats(self.device)
        before = cuda.memory_allocated(self.device)
        yield lambda: cuda.max_memory_allocated(self.device) - before

    def describe(self) -> str:
        """ "NumPy, one core" or "torch, NVIDIA H200"."""
        return {"numpy": "NumPy", "torch": "torch"}[self.name] + ", " + (self.gpu_name() or "one core")

    def gpu_name(self) -> str | None:
        """The name of the CUDA device; None on a CPU."""
        return importlib.import_module("torch").cuda.get_device_name(self.device) if self.device != "cpu" else None


def as_like(host: np.ndarray, other: Array) -> Array:
    """A host array with the library, the device and the dtype of another one."""
    return array_namespace(other).asarray(host, dtype=other.dtype, device=device(other))


def looked_up(table: np.ndarray, index: Array) -> Array:
    """table[index] for an array of whole numbers in floating point, which also gives the result its dtype."""
    xp = array_namespace(index)
    flat = xp.reshape(xp.astype(index, xp.int64), (-1,))
    return xp.reshape(xp.take(as_like(table, index), flat), index.shape)


def to_torch(array: np.ndarray) -> Array:
    """A torch tensor with the numbers and the precision of a NumPy array."""
    return importlib.import_module("torch").from_numpy(np.ascontiguousarray(array))


def from_torch(tensor: Array) -> np.ndarray:
    """A NumPy array with the numbers of a torch tensor on any device."""
    return tensor.detach().cpu().numpy()
