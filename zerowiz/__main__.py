"""Run zerowiz, as `zerowiz` or as `python -m zerowiz`."""

import gc
import sys

from zerowiz.errors import ExitCode


def main() -> None:
    """Load the command line, and run it."""
    # What is loaded stays: to look for garbage among it takes a quarter of the time.
    gc.disable()
    try:
        from zerowiz.cli import main as run  # noqa: PLC0415 - it loads all the rest
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
