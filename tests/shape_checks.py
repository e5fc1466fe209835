"""Shape checks of signatures at run time, where THOROUGH is set (tests/conftest.py)."""

from collections.abc import Callable
from typing import TypeVar

from beartype import BeartypeConf, beartype

# attention/ checks the shapes of its arguments itself: its errors are part of its API.
PACKAGES = [
    f"favorbench.{name}"
    for name in ("kernels", "numerics.logsum", "samplers", "inputs", "maps", "baselines", "studies.kernel")
]

Function = TypeVar("Function", bound=Callable[..., object])

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # a whole number will do for a float


def checked(function):
    """beartype, but for constructors: members check their parameters themselves, and their messages are tested."""
    return function if function.__name__ == "__init__" else _check(function)
