"""Say on a line that moves what a job waits for, and after its first steps what one takes.

`measured_script.py` runs it in rank 0 where a person looks on at a terminal. What others write
starts on the same line and overwrites it, so it is short.
"""

import os
import threading
import time
from pathlib import Path

# core/launch/plan.py: the planned peak in bytes, a colon, and the planned seconds of a step.
PROGRESS_VARIABLE = "ZEROWIZ_PROGRESS"
# rank.py: where torch builds ops, each with a file that stands while it does.
EXTENSIONS_VARIABLE, LOCK_FILE = "TORCH_EXTENSIONS_DIR", "lock"
_TICK_S = 0.5


class FirstSteps:
    """The line, from now until the first step ends.

    Args:
        planned: As PROGRESS_VARIABLE has it.
    """

    def __init__(self, planned: str) -> None:
        self.waits_for = "starting the ranks"
        peak, _, seconds = planned.partition(":")
        self._peak, self._seconds = float(peak), float(seconds or 0)
        self._began_s = time.monotonic()
        self._is_over = threading.Event()
        threading.Thread(target=self._draw, daemon=True).start()

    def _draw(self) -> None:
        while not self._is_over.wait(_TICK_S):
            named = os.environ.get(EXTENSIONS_VARIABLE)
            root = Path(named) if named else Path.home() / ".cache" / "torch_extensions"
            locks = [*root.glob(f"*/{LOCK_FILE}"), *root.glob(f"*/*/{LOCK_FILE}")]
            op = locks[0].parent.name if locks else None
            what = self.waits_for if op is None else f"compiling {op}"
            minutes, seconds = divmod(round(time.monotonic() - self._began_s), 60)
            write(f"zerowiz: {what} {minutes}:{seconds:02}\r")

    def end(self) -> None:
        """The first step has ended: what the script writes is what there is to see."""
        self._is_over.set()
        write("\r")

    def show(self, step: int, seconds: float, peak_bytes: int) -> None:
        """What a step took, beside the plan."""
        time_planned = f" (planned {self._seconds:.3g})" if self._seconds else ""
        peaks = f"{peak_bytes / 2**30:.1f} GiB (planned {self._peak / 2**30:.1f})"
        write(f"zerowiz: step {step} took {seconds:.3g} s{time_planned}, peak {peaks}\n")


def write(text: str) -> None:
    """Text in the place of the line; rank.py keeps it out of the log."""
    os.write(2, f"\x1b[2K{text}".encode())
