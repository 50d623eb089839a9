"""Write zerowiz/data/ds_schema.json out of DeepSpeed itself, one minor version after another.

It holds the keys of the config, and the classes of optimizers and schedulers with their arguments.

Run as `make schema`, or as `python tests/schema/make_schema.py`: it needs torch, and an index to
fetch the versions from that are not installed. A new version is a word of VERSIONS.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILE = ROOT / "zerowiz/data/ds_schema.json"

# The last patch release of each minor version, the newest first; of 0.19 every one that has other
# keys than the one before it. 0.19.0 and 0.19.1 have those of 0.18.9.
VERSIONS = (
    *("0.19.8", "0.19.7", "0.19.6", "0.19.5", "0.19.4", "0.19.3", "0.19.2"),
    *("0.18.9", "0.17.6", "0.16.9"),
)

SOURCE = (
    "DeepSpeed's config classes and their docstrings, Apache-2.0, its optimizers and torch's, by"
    " tests/schema/make_schema.py"
)

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]


def read_rows(package_path: str | None = None) -> Rows:
    """The keys and the classes of one DeepSpeed.

    Args:
        package_path: The folder that holds its package; None for the installed one.
    """
    paths = filter(None, (package_path, str(ROOT / "tests"), str(ROOT)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        subprocess.run(
            [sys.executable, "-m", "schema.read_schema", str(file)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        rows: Rows = json.loads(file.read_text(encoding="utf-8"))
    return rows


def fetch(version: str, folder: str) -> str:
    """Where the source of a version lies, fetched; its ops are not built."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder]
    only_source = ["--no-deps", "--no-binary", ":all:"]
    subprocess.run(
        [*pip, *only_source, f"deepspeed=={version}"],
        env={**os.environ, "DS_BUILD_OPS": "0"},
        check=True,
    )
    [archive] = Path(folder).glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return str(Path(folder, archive.name.removesuffix(".tar.gz")))


def rows_of(version: str) -> Rows:
    """The keys and the classes of a version, installed or fetched."""
    if version == installed("deepspeed"):
        return read_rows()
    with tempfile.TemporaryDirectory() as folder:
        return read_rows(fetch(version, folder))


KINDS = ("keys", "classes")


def steps(by_version: Mapping[str, Rows]) -> list[dict[str, object]]:
    """Each version by how it differs from the one before."""
    before: dict[str, Row] = {}
    found: list[dict[str, object]] = []
    for version, rows in by_version.items():
        now = {row["path"]: row for kind in KINDS for row in rows[kind]}
        changed = {
            kind: [row for row in rows[kind] if row != before.get(row["path"])] for kind in KINDS
        }
        found.append({"version": version, "dropped": sorted(set(before) - set(now)), **changed})
        before = now
    return found


def text_of(versions: Sequence[Mapping[str, Any]]) -> str:
    """The file: a line for each key and class, so that a diff shows those that changed."""
    lines = [f'{{"source": {json.dumps(SOURCE)}, "versions": [']
    for place, step in enumerate(versions):
        head = {name: value for name, value in step.items() if name not in KINDS}
        lines.append(json.dumps(head)[:-1])
        for kind in KINDS:
            lines.append(f', "{kind}": [')
            lines.append(",\n".join(json.dumps(row) for row in step[kind]))
            lines.append("]")
        lines.append("}" if place == len(versions) - 1 else "},")
    return "\n".join([*lines, "]}"]) + "\n"


if __name__ == "__main__":
    FILE.write_text(text_of(steps({each: rows_of(each) for each in VERSIONS})), encoding="utf-8")
