"""Run templates/train_deepspeed.py, and kill rank 0 as it sees a file onto the disk.

KILL_AT says at which `fsync`, counted from the start of the run: each file of a checkpoint has one.
"""

import os
import runpy
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parents[2] / "templates"

flush = os.fsync
calls = count(1)


def flush_or_die(fd: Any) -> None:
    if next(calls) == int(os.environ["KILL_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
    flush(fd)


os.fsync = flush_or_die
sys.path.insert(0, str(TEMPLATES))
runpy.run_path(str(TEMPLATES / "train_deepspeed.py"), run_name="__main__")
