"""Where estimators compute: an array library and a device."""

import contextlib
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from favorbench.errors import ScenarioError
from favorbench.formats import shortened
from favorbench.numerics.arrays import Array
from favorbench.numerics.machine import imported_torch

#: Precisions of an estimator, by backend. tf32 is float32 whose matrix products round their factors to 10 bits.
DTYPES = {
    "numpy": ("float64", "float32"),
    "torch": ("float64", "float32", "tf32", "bfloat16", "float16"),
}

#: The allowed names of devices.
DEVICES = r"cpu|cuda(:\d{1,3})?"


@dataclass(frozen=True)
class Backend:
    """Where estimators compute: an array library and a device.

    Everything is drawn on the host in NumPy float64 and moved once; NumPy holds one draw at a time, torch a batch.
    """

    name: str = "numpy"
    device: str = "cpu"

    def check(self, dtypes: Iterable[str]) -> None:
        """Raise ScenarioError, in one line, if the library, the device or a precision is not available here."""
        if self.name not in DTYPES:
            raise ScenarioError(f"`backend` {shortened(self.name)}: allowed: {', '.join(DTYPES)}")
        for dtype in dtypes:
            if dtype not in DTYPES[self.name]:
                hint = "; `backend` torch has it" if dtype in DTYPES["torch"] else ""
                raise ScenarioError(f"`dtype` {shortened(dtype)}: {self.name} has {', '.join(DTYPES[self.name])}{hint}")
        if not re.fullmatch(DEVICES, self.device):
            raise ScenarioError(f"`device` {shortened(self.device)}: allowed: cpu, cuda or cuda:N")
        if self.name == "torch":
            self._check_torch(dtypes)
        elif self.device != "cpu":
            raise ScenarioError(f"`device` {self.device}: NumPy computes on cpu only; add `backend` torch")

    def _check_torch(self, dtypes: Iterable[str]) -> None:
        """Raise ScenarioError unless torch and the device are available here."""
        if importlib.util.find_spec("torch") is None:
            raise ScenarioError("`backend` torch: torch is not installed: pip install 'favorbench[torch]'")
        if self.device == "cpu":
            if "tf32" in dtypes:
                raise ScenarioError("`dtype` tf32 exists on CUDA devices only; use float32 or bfloat16")
            return
        cuda = importlib.import_module("torch").cuda
        if not cuda.is_available():
            raise ScenarioError(
                f"`device` {self.device}: torch finds no CUDA device here; use `device` cpu, or a CUDA build of torch"
            )
        if int(self.device.partition(":")[2] or 0) >= cuda.device_count():
            raise ScenarioError(f"`device` {self.device}: there are {cuda.device_count()} CUDA devices, from cuda:0 on")

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

    @contextlib.contextmanager
    def precision(self, dtype: str) -> Iterator[None]:
        """torch on one core, as NumPy is; on CUDA matrix products in full precision, unless dtype is tf32."""
        torch = imported_torch()
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
        """Whether torch's scaled_dot_product_attention is available."""
        return self.name == "torch" or importlib.util.find_spec("torch") is not None

    def fused_attention(self, query: Array, key: Array, value: Array, causal: bool = False) -> Array:
        """torch's scaled_dot_product_attention of (L, d) arrays, NumPy arrays through their own memory."""
        torch = importlib.import_module("torch")
        tensors = [to_torch(a) if isinstance(a, np.ndarray) else a for a in (query, key, value)]
        with torch.inference_mode():
            batched = (tensor[None, None] for tensor in tensors)
            return torch.nn.functional.scaled_dot_product_attention(*batched, is_causal=causal)[0, 0]

    def synchronise(self) -> None:
        """Wait until a CUDA device has finished its work."""
        if self.device != "cpu":
            importlib.import_module("torch").cuda.synchronize(self.device)

    @contextlib.contextmanager
    def peak_memory(self) -> Iterator[Callable[[], int | None]]:
        """Yield a function for the peak of bytes allocated inside on a CUDA device; its result is None on a CPU."""
        if self.device == "cpu":
            yield lambda: None
            return
        cuda = importlib.import_module("torch").cuda
        cuda.reset_peak_memory_stats(self.device)
        before = cuda.memory_allocated(self.device)
        yield lambda: cuda.max_memory_allocated(self.device) - before

    def describe(self) -> str:
        """ "NumPy, one core" or "torch, NVIDIA H200"."""
        return f"{'NumPy' if self.name == 'numpy' else 'torch'}, {self.gpu_name() or 'one core'}"

    def gpu_name(self) -> str | None:
        """The name of the CUDA device; None on a CPU."""
        return importlib.import_module("torch").cuda.get_device_name(self.device) if self.device != "cpu" else None


def to_torch(array: np.ndarray) -> Array:
    """A torch tensor with the numbers and the precision of a NumPy array."""
    return importlib.import_module("torch").from_numpy(np.ascontiguousarray(array))
