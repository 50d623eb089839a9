"""Let Accelerate see the other ranks of the CPU accelerator, then become the training.

`rank.py` starts this file by its path, with the training's own words after it.

accelerate 1.15, state.py: `Accelerator()` finds no backend without a GPU, so each rank would train
alone, on all of the data. `ACCELERATE_USE_CPU` finds one, but then DeepSpeed is left out. The state
that is made here finds one, and an Accelerator that comes after it takes both.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

_KEPT: dict[str, Any] = {}


def main() -> None:
    """Make the state, then run the script, or `-m` and a module."""
    from accelerate import PartialState  # noqa: PLC0415 - importing this file must stay cheap

    PartialState(cpu=True)
    run_words(sys.argv[1:])


def run_words(words: list[str]) -> None:
    """Become what is run: a script, or `-m` and a module, with the words after it."""
    if words[0] == "-m":
        sys.path[0] = str(Path.cwd())
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(words[0]).resolve().parent)
        sys.argv = words
        # As Python does it for a script on its command line: `__file__` is absolute, and what the
        # script has made lives until the interpreter ends.
        _KEPT.update(runpy.run_path(str(Path(words[0]).absolute()), run_name="__main__"))


if __name__ == "__main__":
    main()
