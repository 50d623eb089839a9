"""What a rank's Python is prepared for before it becomes the training."""

import subprocess
import sys
from pathlib import Path

from zerowiz.worker import prepared_script

SCRIPT = """\
import io, os, pathlib
os.mkdir("inside")
os.chdir("inside")
for read in (open, io.open, pathlib.Path.open):
    for path in (pathlib.Path("../base.json"), pathlib.Path({base!r})):
        with read(path) as file:
            print(file.read())
print(pathlib.Path("../base.json").read_text(), open("../base.json", "rb").read().decode())
print(open("../other.json").read())
open("../base.json", "w").write("written")
print(open(0, closefd=False).name, open.__name__)
"""


def test_whoever_opens_the_base_reads_the_config_and_all_else_is_as_it_was(tmp_path: Path) -> None:
    names = ("base", "config", "other")
    base, config, _ = (tmp_path / f"{name}.json" for name in names)
    for name in names:
        (tmp_path / f"{name}.json").write_text(name)
    (tmp_path / "train.py").write_text(SCRIPT.format(base=str(base)))
    done = subprocess.run(
        [sys.executable, prepared_script.__file__, "train.py"],
        env={"ZEROWIZ_BASE_FILE": "base.json", "ZEROWIZ_CONFIG_FILE": "config.json"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["config"] * 8 + ["other", "0", "open"]
    assert ("written", "config") == (base.read_text(), config.read_text())
