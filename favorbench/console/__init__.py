"""What a person sees: tables and sentences on stdout, progress and messages on stderr. One file for each study."""

import importlib
from typing import Any

from favorbench.console.tables import show_records, show_table
from favorbench.console.terminal import message, print_line, progress, stderr, stdout

__all__ = ["message", "print_line", "progress", "show_records", "show_table", "stderr", "stdout"]

# Those of single studies are imported when they are needed: a sweep needs none of them.
_HOMES = {
    "show_audit": "audit", "show_capture": "capture", "show_comparison": "compare", "show_gram": "kernel",
    "show_python": "recommend", "show_recommendation": "recommend", "show_report": "reproduce",
    "show_theory": "theory", "show_verification": "verify",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"favorbench.console.{_HOMES[name]}"), name)
