"""A page of `plan --html` in a real browser: legible, usable by keyboard, and without a finding of axe.

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
        assert (DARK if each["theme"] == "dark" else LIGHT) == each["before"]["ground"]


def test_a_page_asks_for_nothing_and_fails_nowhere(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        assert [] == each["errors"]
        assert 1 == len(each["asked"])


def test_axe_finds_nothing_and_leaves_nothing_unexplained(seen: list[dict[str, Any]]) -> None:
    judged = [each["judged"] for each in seen]
    assert [] == [finding for each in judged for finding in each["violations"]]
    # Contrast is measured where axe cannot tell; of all else it has to be sure.
    assert [] == [finding for each in judged for finding in each["unexplained"]]
    assert all(each["measured"] >= each["undecided"] > 0 for each in judged)


def test_every_text_and_every_area_contrasts_with_what_it_touches(
    seen: list[dict[str, Any]],
) -> None:
    for each in seen:
        where = each["page"], each["width"], each["theme"]
        assert [] == each["judged"]["faint"], where
        assert [] == each["judged"]["touching"], where


def test_sliders_are_moved_by_keyboard(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        before, larger, largest = each["before"], each["larger"], each["largest"]
        assert ["micro-batch", "length"] == each["reached"]
        assert int(larger["micro_batch"]) > int(before["micro_batch"])
        assert larger["length"] == before["length"]
        assert int(largest["length"]) > int(before["length"])
        assert 3 == len({state["answer"] for state in (before, larger, largest)})
        assert before["widths"] != largest["widths"]
        assert f"{largest['length']} tokens" in largest["answer"]
        assert before == each["reset"]


def test_the_theme_can_be_changed(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        was_dark = each["theme"] == "dark"
        assert (LIGHT if was_dark else DARK) == each["toggled"]["ground"]
        assert ("false" if was_dark else "true") == each["pressed"]
