"""python -m favorbench, and the console script. Nothing heavy is imported before signals are handled."""

import sys

from favorbench.engine.interrupts import ending, signals_raised


def main() -> None:
    """Run the command line; an error while it is still being loaded is one line too."""
    with signals_raised():
        try:
            from favorbench.cli import main as run
        except KeyboardInterrupt:
            word, code = ending()
            print(f"favorbench: {word}", file=sys.stderr)  # noqa: T201
            sys.exit(code)
        except (ImportError, MemoryError, OSError, SystemError) as error:
            if "--debug" in sys.argv:
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            print(  # noqa: T201
                f"favorbench: cannot be loaded: {reason}; is there enough memory, and is the installation complete?",
                file=sys.stderr,
            )
            sys.exit(2)
        run()


if __name__ == "__main__":
    main()
