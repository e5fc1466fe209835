"""python -m favorbench, and the console script. Nothing heavy is imported before an interruption is handled."""

import contextlib
import os
import signal
import sys

WORDS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}


def main() -> None:
    """Run the command line; what goes wrong while it is still being loaded is one line too."""
    ends = [getattr(signal, name) for name in WORDS if hasattr(signal, name)]  # Windows knows no SIGHUP
    before = [(number, signal.signal(number, _gone)) for number in ends if _ends(number)]
    try:
        from favorbench.cli import main as run
    except (ImportError, MemoryError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        _say(f"cannot be loaded: {reason}; is there enough memory, and is the installation whole?")
        sys.exit(2)
    for number, handler in before:
        signal.signal(number, handler)
    run()


def _ends(number: int) -> bool:
    """Whether a signal would end this process: a background shell has it ignored, and a debugger handles it."""
    return signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


def _gone(number: int, frame: object) -> None:
    """Nothing is there to be saved; and an exception could be swallowed by whatever is being imported."""
    _say(WORDS[signal.Signals(number).name])
    os._exit(128 + number)


def _say(text: str) -> None:
    with contextlib.suppress(OSError, AttributeError):  # nobody is there to read it: a terminal that was closed
        sys.stderr.write(f"favorbench: {text}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main()
