"""What jaxtyping checks shapes with, in the packages that pyproject.toml names."""

from collections.abc import Callable
from typing import TypeVar

from beartype import beartype

Function = TypeVar("Function", bound=Callable[..., object])


def checked(function: Function) -> Function:
    """beartype, but for constructors: members check their parameters themselves, and their messages are tested."""
    return function if function.__name__ == "__init__" else beartype(function)
