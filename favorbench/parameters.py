"""What the parameters of members may be: every refusal says which, what is allowed and what was given."""

import math
import sys
from typing import TypeGuard

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


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raise ScenarioError unless ``value`` is a whole number from ``low`` to ``high``."""
    if type(value) is not int or not low <= value <= high:
        raise ScenarioError(f"{name} must be a whole number from {low} to {high}, got {shown(value)}")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether this is an int or a float that is finite in float64. True and False are no numbers here."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
