"""Output in a terminal: tables and sentences on stdout, progress and messages on stderr."""

from favorbench.console.terminal import message, print_line, progress, show, stderr, stdout

__all__ = ["message", "print_line", "progress", "show", "stderr", "stdout"]
