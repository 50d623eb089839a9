"""The pages have what the blocks in their comments make of the code."""

import subprocess
import sys

import pytest
from cli.harness import clean_environ
from paths import ROOT

PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if "[[[cog" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_what_its_blocks_make(page: str) -> None:
    cog = [sys.executable, "-m", "cogapp", "--check", "--diff", "-I", "tests", page]
    done = subprocess.run(
        cog, cwd=ROOT, env=clean_environ(), capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert 0 == done.returncode, f"{page}: `make golden` rewrites it\n{said}"


def test_pages_with_blocks_were_found() -> None:
    assert len(PAGES) >= 8
