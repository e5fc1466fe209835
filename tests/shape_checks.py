"""What jaxtyping checks shapes with, in the packages that pyproject.toml names."""

from collections.abc import Callable
from typing import TypeVar

from beartype import BeartypeConf, beartype

Function = TypeVar("Function", bound=Callable[..., object])

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # a whole number will do for a float


def checked(function: Function) -> Function:
    """beartype, but for constructors: members check their parameters themselves, and their messages are tested."""
    return function if function.__name__ == "__init__" else _check(function)
