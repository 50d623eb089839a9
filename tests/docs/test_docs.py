"""What the documents tell people to type works, and what they list is complete."""

import math
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
from cli.harness import Run

from zerowiz import __version__
from zerowiz.cli import commands
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")]


def commands_of(pages: Iterable[Path]) -> list[str]:
    """What stands behind a prompt."""
    lines = (line for page in pages for line in page.read_text(encoding="utf-8").splitlines())
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


COMMANDS = commands_of(PAGES)
# A folder, a file and a hub id that stand for the reader's own.
READERS_OWN = ("./my-model", "node.json", "meta-llama/")
# Those of the README, the guides and the concepts: tests/docs/test_pages.py.
PLANS = [
    c
    for c in commands_of(OTHER_PAGES)
    if c.startswith("zerowiz plan") and not any(r in c for r in READERS_OWN)
]


@pytest.fixture
def at_root(here: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run in the folder of the repository, where the commands of the documents stand."""
    monkeypatch.chdir(ROOT)
    return here


@pytest.mark.parametrize("command", PLANS)
def test_a_plan_in_the_documents_finds_a_strategy(at_root: Run, command: str) -> None:
    done = at_root(*shlex.split(command)[1:]).good
    many = "--machine all" in command or "--compare" in command
    assert ("tokens/s" if many else "recommended") in done.stdout


def test_the_pages_name_the_version_that_is_released() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    [released, *_] = [each for each in headings if each != "Unreleased"]
    hook = (ROOT / "docs" / "guides" / "check.md").read_text(encoding="utf-8")
    assert [__version__] * 2 == [released, *re.findall(r"rev: v(\S+)", hook)]


def test_every_option_in_the_documents_exists(at_root: Run) -> None:
    assert PLANS
    known = {
        option
        for command in commands.COMMANDS
        for option in re.findall(r"--[a-z][a-z-]+", at_root(command, "--help").stdout)
    }
    # Another launcher's options stand behind its name, the script's behind the script.
    ends = re.compile(r"\.py| (?:torchrun|accelerate|deepspeed|python3?) ")
    own = [ends.split(c)[0] for c in COMMANDS if c.startswith("zerowiz")]
    used = {option for command in own for option in re.findall(r"--[a-z][a-z-]+", command)}
    assert set() == used - known


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = {c.split()[1] for c in COMMANDS if c.startswith("make ")}
    assert set() == told - targets
    assert {"demo", "test"} <= told


def test_every_strategy_has_its_row() -> None:
    page = ROOT / "docs" / "reference" / "configs.md"
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| `(ds_config_[a-z0-9_]+\.json)` \|",
        page.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert [(s.name, s.config_name) for s in STRATEGIES] == rows


def test_every_family_is_named() -> None:
    page = (ROOT / "docs" / "concepts" / "memory.md").read_text(encoding="utf-8")
    assert [] == [name for name in FAMILIES if f"`{name}`" not in page]


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading; mkdocs.yml makes the same."""
    shown = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, and of the elements that it names itself."""
    text = page.read_text(encoding="utf-8")
    outside_of_code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", outside_of_code, re.MULTILINE)
    return {slug(heading) for heading in headings} | set(re.findall(r'id="([^"]+)"', text))


def test_every_link_between_the_pages_leads_somewhere() -> None:
    dead = []
    for page in PAGES:
        links = re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8"))
        for target, anchor in links:
            path = page.parent / target if target else page
            if not path.exists() or (anchor and anchor not in anchors(path)):
                dead.append((page.name, target, anchor))
    assert [] == dead


def test_no_page_of_the_site_links_to_what_is_not_in_the_site() -> None:
    docs = ROOT / "docs"
    outside = [
        (page.name, target)
        for page in docs.rglob("*.md")
        for target in re.findall(r"\]\(([^)#:]+)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).resolve().is_relative_to(docs)
    ]
    assert [] == outside


def test_every_page_is_found_in_the_navigation_of_the_site() -> None:
    shown = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(pages) == sorted(shown)


def test_every_path_that_the_documents_name_exists() -> None:
    shapes = r"`((?:zerowiz|tests|templates|docs|core|app|cli|probe|emit|ui|worker|data)/[\w./-]+)`"
    missing = [
        (page.name, path)
        for page in PAGES
        for path in re.findall(shapes, page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists() and not (ROOT / "zerowiz" / path).exists()
    ]
    assert [] == missing


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "guides").glob("*.md")), ids=lambda page: page.stem
)
def test_a_step_time_that_a_guide_writes_of_is_one_that_its_commands_print(page: Path) -> None:
    """`tests/docs/test_pages.py` holds what they print against zerowiz."""
    text = page.read_text(encoding="utf-8")
    block = re.compile(r"^```\w+\n.*?^```", re.MULTILINE | re.DOTALL)
    prose, printed = block.sub("", text), "".join(block.findall(text))
    shape = r"\b[\d.]+(?= s (?:a|per|instead)\b)|(?<=instead of )[\d.]+(?= s\b)"
    shape += r"|\b\d+ %(?= (?:longer|faster here))"
    assert [] == [each for each in re.findall(shape, prose) if each not in printed]


def test_the_figures_of_speed_elsewhere_are_those_of_the_accuracy_page() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    regret = re.search(
        r"^Of (\d+) workloads: mean ([\d.]+) %, worst ([\d.]+) %", page, re.MULTILINE
    )
    aside = page.partition("Steps on the side set aside")[2]
    times = re.search(r"^\|  \| all \| \d+ \| ([\d.]+)% \| ([\d.]+)% ", aside, re.MULTILINE)
    assert regret
    assert times
    half, nine_in_ten = (math.ceil(float(each)) for each in times.groups())
    pairs = re.findall(r"for (\d+) of (\d+) \(\S+\) pairs of settings", page)
    right, ranked = (sum(map(int, each)) for each in zip(*pairs, strict=True))
    [drawn] = re.findall(r"^by name: [^;]* of (\d+);", page, re.MULTILINE)
    ways = r"(?:by name|read live|after one measure): mean ([\d.]+) %, worst ([\d.]+) % of"
    of_drawn = [*re.findall(ways, page)[:3], (drawn,)]
    for readme in ROOT.glob("README*.md"):
        text = readme.read_text(encoding="utf-8")
        assert {figure for way in of_drawn for figure in way} <= {*re.findall(r"[\d.]+", text)}
        said = {*regret.groups(), str(half), str(nine_in_ten), str(100 * right // ranked)}
        assert said <= {*re.findall(r"[\d.]+", text)}
    repeats = re.search(r"Their times differ by ([\d.]+)% in the median", page)
    assert repeats
    concept = (ROOT / "docs" / "concepts" / "speed.md").read_text(encoding="utf-8")
    assert f"within {half} %, and nine in ten within {nine_in_ten} %" in concept
    assert f"differs by {repeats[1]} % in the median" in concept


def test_the_readmes_name_the_same_errors() -> None:
    english, japanese = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.ja.md")
    )
    row = re.search(r"^\| zerowiz \| \d+ \| ([\d.]+ %) \| (\S+ %) \|$", english, re.MULTILINE)
    assert row
    assert all(error in japanese for error in row.groups())


def sentences(page: Path) -> list[str]:
    """The prose of a page: no code, tables, headings or comments; `code` and a link are one word."""
    text = re.sub(
        r"<!--.*?-->|^( *)```.*?^\1```$",
        "",
        page.read_text("utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    prose = re.sub(r"^ *(?:\||#|!\[|<).*$", "", text, flags=re.MULTILINE)
    prose = re.sub(r"`[^`]*`", "CODE", prose)
    prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose).replace("**", "")
    parts = re.split(r"\n\s*\n|^ *(?:[-*]|\d+\.) ", prose, flags=re.MULTILINE)
    ends = r"(?<=[.!?:])\)?\s+(?=[A-Z0-9\"(]|zerowiz)"
    return [each for part in parts for each in re.split(ends, part) if each.strip()]


def test_few_sentences_of_readme_and_guides_are_long() -> None:
    """`pytest -s` prints how many have more than 25 words."""
    pages = [ROOT / "README.md", *(ROOT / "docs" / "guides").glob("*.md")]
    said = [each.split() for page in pages for each in sentences(page)]
    long = [" ".join(words) for words in said if len(words) > 25]
    print(f"{len(long)} of {len(said)} sentences have more than 25 words")  # noqa: T201 - as above
    assert len(long) <= 0.03 * len(said), "\n".join(long)
