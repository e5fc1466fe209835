"""What a person sees: tables and sentences on stdout, progress and messages on stderr. One file for each study."""

from favorbench.console.audit import show_audit
from favorbench.console.capture import show_capture
from favorbench.console.compare import show_comparison
from favorbench.console.kernel import show_gram
from favorbench.console.recommend import show_python, show_recommendation
from favorbench.console.reproduce import show_report
from favorbench.console.seconds import show_seconds
from favorbench.console.speed import show_speed
from favorbench.console.tables import show_records, show_table
from favorbench.console.terminal import message, print_line, progress, stderr, stdout
from favorbench.console.theory import show_theory
from favorbench.console.verify import show_verification

__all__ = [
    "message",
    "print_line",
    "progress",
    "show_audit",
    "show_capture",
    "show_comparison",
    "show_gram",
    "show_python",
    "show_recommendation",
    "show_records",
    "show_report",
    "show_seconds",
    "show_speed",
    "show_table",
    "show_theory",
    "show_verification",
    "stderr",
    "stdout",
]
