"""Hold torch's own lock on an op in FOLDER as the process that builds it does, for SECONDS.

A compiler runs in the folder meanwhile: `sleep` stands in for it.
"""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    """Take the lock, wait, and give it back; a signal that kills leaves it."""
    folder, seconds = Path(sys.argv[-2]), float(sys.argv[-1])
    folder.mkdir(parents=True, exist_ok=True)
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.submodule_search_locations is not None
    # The file alone: to import torch takes seconds.
    path = Path(torch.submodule_search_locations[0], "utils", "file_baton.py")
    spec = importlib.util.spec_from_file_location("file_baton", path)
    assert spec is not None
    assert spec.loader is not None
    file_baton = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file_baton)
    baton = file_baton.FileBaton(str(folder / "lock"))
    assert baton.try_acquire()
    subprocess.Popen(["sleep", "60"], cwd=folder, stdout=subprocess.DEVNULL)
    time.sleep(seconds)
    baton.release()


if __name__ == "__main__":
    main()
