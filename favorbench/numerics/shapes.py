"""Shapes in signatures: jaxtyping's types under pytest, which checks them; elsewhere they are there to be read.

Importing jaxtyping takes longer than importing NumPy, and every command and every worker process would pay for it.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Float
else:

    class Float:
        """Any array."""

        def __class_getitem__(cls, shape: object) -> Any:
            return Any


__all__ = ["Float"]
