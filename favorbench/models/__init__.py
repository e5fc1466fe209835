"""Language models and other torch modules: weights, attention calls, and the effects of estimators on them.

torch and transformers are imported on first use, so everything else works without them.
"""

from importlib import import_module
from typing import Any


class LazyModule:
    """A module that is imported when an attribute of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


torch: Any = LazyModule("torch")
transformers: Any = LazyModule("transformers")
