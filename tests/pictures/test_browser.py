"""A page of `plan --html` in a real browser: legible, and without a finding of axe.

`make test-pictures` installs the browser and axe. The screenshots stay in a folder that is printed (`-s`).
"""

import json
import subprocess
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from cli.harness import run_process
from recorded import described

HERE = Path(__file__).parent
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 24, 29)"
PLANS: dict[str, tuple[str, ...]] = {
    "fits": ("--machine", "4xA100-40GB", "--model", "7b", "--gradient-checkpointing"),
    "nothing-fits": ("--machine", "2xRTX4090", "--model", "70b"),
    "pairs": ("--machine", described("h200-x4", Path(mkdtemp())), "--model", "32b"),
    "one": ("--machine", "1xH100-80GB", "--model", "1b"),
    "candidates": (
        *("--machine", "2xH200", "--model", "1b"),
        *("--global-batch", "64", "--objective", "fastest"),
    ),
}

pytestmark = pytest.mark.pictures


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    """What was seen of each page, at each width, in each theme."""
    # pytest clears its own folders when it runs again.
    folder = Path(mkdtemp(prefix="zerowiz-pictures-"))
    pages = []
    for name, words in PLANS.items():
        written = run_process(folder, "plan", *words, "--html", f"{name}.html")
        assert written.code in {0, 4}, written.stderr
        pages.append(str(folder / f"{name}.html"))
    done = subprocess.run(
        ["node", "look.mjs", "/usr/bin/chromium", str(folder), *pages],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    print(f"screenshots: {folder}")  # noqa: T201 - for a person to look at
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert 4 * len(PLANS) == len(found)
    return found


def test_a_page_is_legible_at_each_width_in_each_theme(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        assert [] == each["overlaps"], each
        assert 0 >= each["too_wide"], each
        assert (DARK if each["theme"] == "dark" else LIGHT) == each["ground"]


def test_a_page_asks_for_nothing_and_fails_nowhere(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        assert [] == each["errors"]
        assert 1 == len(each["asked"])


def test_axe_finds_nothing_and_leaves_nothing_undecided(seen: list[dict[str, Any]]) -> None:
    assert [] == [finding for each in seen for finding in each["violations"]]
    assert [] == [finding for each in seen for finding in each["undecided"]]
