"""What a person sees: tables and sentences on stdout, progress and messages on stderr."""

from favorbench.console.studies import show_audit, show_gram, show_report, show_speed, show_theory, show_verification
from favorbench.console.tables import show_records, show_table
from favorbench.console.terminal import message, progress, stderr, stdout

__all__ = [
    "message",
    "progress",
    "show_audit",
    "show_gram",
    "show_records",
    "show_report",
    "show_speed",
    "show_table",
    "show_theory",
    "show_verification",
    "stderr",
    "stdout",
]
