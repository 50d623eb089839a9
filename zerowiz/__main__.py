"""Run zerowiz, as `zerowiz` or as `python -m zerowiz`."""

import gc
import sys

from zerowiz.translation import LANGUAGES, _, speak

# What these print is read by programs, which know English.
_FOR_PROGRAMS = frozenset({"--json", "--sarif", "--schema"})


def main() -> None:
    """Load the command line, and run it."""
    # What is loaded stays: to look for garbage among it takes a quarter of the time.
    gc.disable()
    if not _FOR_PROGRAMS.isdisjoint(sys.argv):
        speak(LANGUAGES[0])
    try:
        from zerowiz.cli.commands import main as run  # noqa: PLC0415 - it loads all the rest

        run()
    except KeyboardInterrupt:
        # `ExitCode` may not be loaded yet.
        sys.exit(130)
    except EOFError:
        # On a full disk Python 3.13 and older keeps what fits of a module that it compiles.
        message = _("a compiled module of Python is cut short, as a full disk leaves it")
        hint = _("delete the `__pycache__` folders under `{folder}`", folder=sys.prefix)
        sys.stderr.write("\n".join([_("error: ") + message, "", _("hint: ") + hint, ""]))
        sys.exit(1)
    finally:
        # Nor is any looked for as Python ends.
        gc.freeze()


if __name__ == "__main__":
    main()
