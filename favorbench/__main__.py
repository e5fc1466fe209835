"""python -m favorbench, and the console script. Nothing heavy is imported before an interruption is handled."""

import sys


def main() -> None:
    """Run the command line; what goes wrong while it is still being loaded is one line too."""
    try:
        from favorbench.cli import main as run

        run()
    except KeyboardInterrupt:
        _end("interrupted", 130)
    except (ImportError, MemoryError, OSError) as error:  # loading: run() has words of its own for all that follows
        _end(f"cannot be loaded: {error or type(error).__name__}; is there enough memory, and is the install whole?", 2)


def _end(text: str, code: int) -> None:
    if "--debug" in sys.argv:
        raise
    print("favorbench:", *text.split(), file=sys.stderr)  # noqa: T201
    sys.exit(code)


if __name__ == "__main__":
    main()
