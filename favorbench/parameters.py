"""The allowed parameters of members: each error names the parameter, what is allowed and what was given.

A member is a dataclass. ``steps: int = whole(0, 100, default=6)`` declares a field, its range and its default; fields
of a ``Literal`` type need nothing more. ``check_parameters`` holds an object to all of them.
"""

import dataclasses
import difflib
import functools
import math
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeGuard, get_args, get_origin

from favorbench.errors import ScenarioError
from favorbench.formats import shown


def check_positive(name: str, value: object, most: float = math.inf, otherwise: str = "") -> None:
    """Raise ScenarioError unless ``value`` is a number above 0 and up to ``most``. otherwise: what else would do."""
    if not (is_number(value) and 0 < value <= most):
        limit = f", at most {most:g}" if most < math.inf else ""
        also = f", or {otherwise}" if otherwise else ""
        raise ScenarioError(f"{name} must be a positive number{limit}{also}, got {shown(value)}")


def check_between(name: str, value: object, low: float, below: float) -> None:
    """Raise ScenarioError unless ``value`` is a number from ``low`` up to, but not, ``below``."""
    if not (is_number(value) and low <= value < below):
        raise ScenarioError(f"{name} must be a number from {low:g} up to, but not, {below:g}, got {shown(value)}")


def check_factor(name: str, value: object) -> None:
    """Raise ScenarioError unless ``value`` is a number from 1 to 1e6."""
    if not (is_number(value) and 1 <= value <= 1e6):
        raise ScenarioError(f"{name} must be a number from 1 to 1e6, got {shown(value)}")


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raise ScenarioError unless ``value`` is a whole number from ``low`` to ``high``."""
    if type(value) is not int or not low <= value <= high:
        raise ScenarioError(f"{name} must be a whole number from {low} to {high}, got {shown(value)}")


def whole_numbers(name: str, given: Iterable[Any] | None) -> tuple[int, ...] | None:
    """The numbers of layers or heads, None for all. Raises ScenarioError for others than whole numbers from 0."""
    try:
        numbers = None if given is None else tuple(map(operator.index, given))
    except TypeError:
        numbers = (-1,)
    if numbers and min(numbers) < 0:
        raise ScenarioError(f"{name} must be whole numbers from 0, such as [0, 1], got {shown(given)}")
    return numbers


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether this is an int or a float that is finite in float64. True and False are not numbers here."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


MAX_NAME = 1000  # characters: far beyond any meaningful name


def nearest(name: str, allowed: Iterable[str]) -> str:
    """ " (did you mean 'x'?)" for the closest allowed name, or nothing."""
    if len(name) > MAX_NAME:
        return ""
    names = list(allowed)
    alike = [other for other in names if other[:1] == name[:1]]
    close = difflib.get_close_matches(name, names, n=1) or difflib.get_close_matches(name, alike, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_name(key: str, value: object, allowed: Iterable[str]) -> None:
    """Raise ScenarioError for an argument that is none of the allowed names."""
    if value not in (names := list(allowed)):
        raise ScenarioError(f"`{key}` {shown(value)}{nearest(str(value), names)}; allowed: {', '.join(names)}")


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ScenarioError unless ``value`` is one of the ``allowed``."""
    if value not in allowed:
        *first, last = map(repr, allowed)
        hint = nearest(str(value), allowed)
        raise ScenarioError(f"{name} must be {', '.join(first)} or {last}, got {shown(value)}{hint}")


def _checked(default: Any, check: Callable[..., None], **limits: Any) -> Any:
    """A field of a dataclass with its check."""
    return dataclasses.field(default=default, metadata={"check": functools.partial(check, **limits)})


def whole(low: int, high: int, default: Any = dataclasses.MISSING) -> Any:
    """A field of whole numbers from ``low`` to ``high``."""
    return _checked(default, check_whole, low=low, high=high)


def positive(default: Any, most: float = math.inf, otherwise: str = "") -> Any:
    """A field of numbers above 0 and up to ``most``."""
    return _checked(default, check_positive, most=most, otherwise=otherwise)


def between(low: float, below: float, default: Any) -> Any:
    """A field of numbers from ``low`` up to, but not, ``below``."""
    return _checked(default, check_between, low=low, below=below)


def check_parameters(member: Any) -> None:
    """Raise ScenarioError for a field that is not as declared; a default of None is always allowed."""
    for part in dataclasses.fields(member):
        value = getattr(member, part.name)
        if part.init and get_origin(part.type) is Literal:
            check_choice(part.name, value, get_args(part.type))
        if "check" in part.metadata and (value is not None or part.default is not None):
            part.metadata["check"](part.name, value)
