"""Training scripts as people write them: `scripts.txt`, where a line `#### NAME` begins each."""

import atexit
import re
import shutil
import tempfile
from pathlib import Path


def _unpack() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="zerowiz-scripts-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    _before, *parts = re.split(r"^#### (.+)\n", text, flags=re.MULTILINE)
    for name, script in zip(parts[::2], parts[1::2], strict=True):
        (folder / name).write_text(script, encoding="utf-8")
    return folder


SCRIPTS = _unpack()
"""A folder with a file for each, as long as this process lasts."""
