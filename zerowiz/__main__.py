"""Run zerowiz, as `zerowiz` or as `python -m zerowiz`."""

import gc


def main() -> None:
    """Load the command line, and run it."""
    # What is loaded stays: to look for garbage among it takes a third of the time.
    gc.disable()
    from zerowiz.cli import main as run  # noqa: PLC0415 - it loads all the rest

    run()


if __name__ == "__main__":
    main()
