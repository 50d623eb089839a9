"""Prepare the Python of a rank for what no option of the training says, then become the training.

`rank.py` starts this file by its path, with the training's own words after it.
"""

import builtins
import io
import os
import runpy
import sys
from functools import wraps
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

# core/script/config_delivery.py: the config whose name the script fixes, and what is read instead.
BASE_VARIABLE, CONFIG_VARIABLE = "ZEROWIZ_BASE_FILE", "ZEROWIZ_CONFIG_FILE"
# first_steps.py: a person looks on.
PROGRESS_VARIABLE = "ZEROWIZ_PROGRESS"
# rank.py: of an Accelerator that is configured from outside.
ACCELERATE_ON_CPU = {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"}
# The `__main__` that made room for the script's: what it has defined is in use to the end.
_KEPT: list[ModuleType] = []


def main() -> None:
    """Prepare what the environment asks for, then run the script, or `-m` and a module."""
    if ACCELERATE_ON_CPU.items() <= os.environ.items():
        show_other_ranks()
    if BASE_VARIABLE in os.environ:
        read_instead(Path(os.environ[BASE_VARIABLE]), Path(os.environ[CONFIG_VARIABLE]))
    run_words(sys.argv[1:])


def show_other_ranks() -> None:
    """Let Accelerate see the other ranks of the CPU accelerator.

    accelerate 1.15, state.py: `Accelerator()` finds no backend without a GPU, so each rank would
    train alone, on all of the data. `ACCELERATE_USE_CPU` finds one, but then DeepSpeed is left out.
    The state that is made here finds one, and an Accelerator that comes after it takes both.
    """
    from accelerate import PartialState  # noqa: PLC0415 - importing this file must stay cheap

    PartialState(cpu=True)


def read_instead(base: Path, config: Path) -> None:
    """Let whatever opens a file to read it get another one. Python's own `open` does that.

    Args:
        base: The file, which stays as it is.
        config: What is read.
    """
    instead, opened, named = config.absolute(), io.open, base.absolute()

    @wraps(opened)
    def open_file(file: Any, mode: str = "r", *words: Any, **named_words: Any) -> Any:  # noqa: ANN401
        is_base = isinstance(file, str | os.PathLike) and not {*mode} & {*"wax+"}
        if is_base and os.path.realpath(file) == os.path.realpath(named):
            file = instead
        return opened(file, mode, *words, **named_words)

    # Files of pathlib open by the second name (3.10 to 3.14).
    builtins.open = io.open = open_file


def run_words(words: list[str]) -> None:
    """Become what is run, as Python's command line does it: a script, or `-m` and a module.

    Its `__main__` stays until the interpreter ends, for a thread or an exit handler that pickles
    its classes. Its traceback is printed without the frames of this file and its caller.

    Args:
        words: The script, or `-m` and a module, and the words after it.
    """
    _KEPT.append(sys.modules["__main__"])
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        if words[0] == "-m":
            sys.path[0] = str(Path.cwd())
            sys.argv = words[1:]
            # CPython's own `-m` calls it by this name (Modules/main.c).
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # noqa: SLF001
        else:
            sys.path[0] = str(Path(words[0]).resolve().parent)
            sys.argv = words
            _run_script(str(Path(words[0]).absolute()))
    except KeyboardInterrupt:
        if PROGRESS_VARIABLE not in os.environ:
            raise
        # As a shell has it: 128 and the number of the signal. Nothing of Python's own end is said.
        os._exit(130)
    except Exception as error:  # noqa: BLE001 - whatever the training raises
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def _run_script(path: str) -> None:
    """Run the script's code in `__main__`."""
    loader = SourceFileLoader("__main__", path)
    names = vars(sys.modules["__main__"])
    names.update(__file__=path, __loader__=loader, __builtins__=builtins)
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    exec(code, names)  # noqa: S102 - a person's own script


if __name__ == "__main__":
    main()
