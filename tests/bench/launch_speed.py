"""Time what `zerowiz launch` takes before `deepspeed` starts, and the whole of `zerowiz doctor`.

`deepspeed` is a stand-in that says when it was started. Run it on a quiet machine.
"""

import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS = 11
# fmt: off
JOB = (
    "--accelerator", "cpu", "--gpus-per-node", "2", "--model", ROOT / "templates/model", "--micro-batch", "2",
    ROOT / "templates/train_deepspeed.py",
)
# fmt: on
# As pip installs it.
COMMAND = "import sys\nfrom zerowiz.__main__ import main\nsys.exit(main())\n"
SPY = '#!/bin/sh\ndate +%s%N > "$STARTED"\n'


def main() -> None:
    """Print the medians."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = folder / "bin" / "python"
        python.parent.mkdir()
        python.symlink_to(sys.executable)
        zerowiz = folder / "bin" / "zerowiz"
        zerowiz.write_text(f"#!{python}\n{COMMAND}")
        zerowiz.chmod(0o755)
        spy = folder / "bin" / "deepspeed"
        spy.write_text(SPY)
        spy.chmod(0o755)
        paths = os.pathsep.join(
            filter(None, [str(ROOT), sysconfig.get_path("purelib"), os.environ.get("PYTHONPATH")])
        )
        environ = {**os.environ, "PYTHONPATH": paths, "STARTED": str(folder / "started")}
        for words in (("launch", "--yes"), ("launch", "--yes", "--no-supervise")):
            argv = [zerowiz, *words, *JOB]
            show(" ".join(words), [start(argv, environ, folder) for _ in range(RUNS)])
        argv = [zerowiz, "doctor", *JOB]
        show("doctor", [whole(argv, environ, folder) for _ in range(RUNS)])
        show("python -c ''", [whole([python, "-c", ""], environ, folder) for _ in range(RUNS)])


def start(argv: list[str | Path], environ: dict[str, str], folder: Path) -> float:
    """Seconds until the stand-in was started."""
    began_ns = time.time_ns()
    ended = subprocess.run(argv, env=environ, cwd=folder, capture_output=True, check=False)
    if not (folder / "started").exists():
        sys.exit(f"deepspeed was not started:\n{ended.stderr.decode()}")
    return (int((folder / "started").read_text()) - began_ns) / 1e9


def whole(argv: list[str | Path], environ: dict[str, str], folder: Path) -> float:
    """Seconds to the end."""
    began_s = time.monotonic()
    subprocess.run(argv, env=environ, cwd=folder, capture_output=True, check=False)
    return time.monotonic() - began_s


def show(what: str, taken_s: list[float]) -> None:
    """One line."""
    median, worst = statistics.median(taken_s), max(taken_s)
    sys.stdout.write(f"{what:28} median {median:.3f} s  worst {worst:.3f} s  of {len(taken_s)}\n")


if __name__ == "__main__":
    main()
