"""What terminals of different widths show: nothing is cut, nothing is wider, colour adds nothing."""

import io
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise

import pytest
from ui.streams import TerminalStream

from zerowiz.app.api import PlanResult, plan
from zerowiz.core.machine.types import Machine, PairLink, PciePath
from zerowiz.core.structs import replace
from zerowiz.ui import choice, remedies, show
from zerowiz.ui.machine import machine as show_machine
from zerowiz.ui.pictures import Side, compare, explain, flowchart, strategy_lines
from zerowiz.ui.text import draw, length

WIDTHS = (50, 80, 140)
ESCAPE = re.compile(r"\x1b\[[\d;]*m")


class Ascii(TerminalStream):
    """One that knows no other signs."""

    encoding = "ascii"


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A terminal of a width, in colour or without."""

    def become(columns: int, *, coloured: bool = False) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("NO_COLOR", "" if coloured else "1")

    return become


# Each way through the flowchart, and numbers of every length.
PLANS: dict[str, tuple[str, dict[str, object]]] = {
    "fits": ("4xA100-40GB", {"model": "7b", "gradient_checkpointing": True}),
    "refused": ("4xRTX4090", {"model": "7b", "gradient_checkpointing": True}),
    "replica": ("8xH100-80GB-SXM", {"model": "1b"}),
    "middle": ("8xH100-80GB-SXM", {"model": "7b"}),
    "slow": ("4xRTX4090", {"model": "3b", "gradient_checkpointing": True, "offload": "auto"}),
    "alone": ("1xH200", {"model": "70b"}),
    "pinned": ("4xRTX4090", {"model": "7b", "stage": "3", "offload": "optimizer"}),
    "forced": ("2xRTX4090", {"model": "70b", "stage": "2", "force": True}),
    "nodes": ("2x8xH100-80GB-SXM", {"model": "405b", "method": "lora"}),
    "host": ("p5.48xlarge", {"model": "70b", "gradient_checkpointing": True}),
    "offload": ("4xRTX4090", {"model": "7b", "offload": "all", "host_memory": "1TiB"}),
    "cpu": ("cpu", {"model": "10m", "gpus_per_node": 2}),
    "small": ("4xA100-40GB", {"model": "10m", "memory_budget": "600MiB"}),
    "textbook": ("4xA100-40GB", {"model": "7b", "accounting": "textbook"}),
    "vllm": (
        "8xH100-80GB-SXM",
        {"model": "7b", "trainer": "grpo", "vllm_memory_fraction": 0.3, "completion_tokens": 64},
    ),
    "fastest": ("2xH200", {"model": "1b", "global_batch": 64, "objective": "fastest"}),
}


@cache
def planned(name: str) -> PlanResult:
    machine, settings = PLANS[name]
    return plan(machine, **settings)  # type: ignore[arg-type]


def page(name: str, stream: io.StringIO | None = None, *, is_verbose: bool = False) -> str:
    """The page of a plan, as `zerowiz plan` prints it."""
    stream, result = stream or TerminalStream(), planned(name)
    found, decision = result.decided.search, result.decided.decision
    if is_verbose:
        show.whole_plan(decision, stream)
    else:
        show.plan(decision, stream, assumed=result.decided.resolved.assumed)
    if result.remedies:
        remedies.table(result.remedies, stream)
    if found is not None and "objective" in PLANS[name][1]:
        choice.search(found, found.objective, stream)
    return stream.getvalue()


def explained(name: str) -> str:
    stream, decision = TerminalStream(), planned(name).decided.decision
    explain(decision, decision.evaluated[2], stream)
    return stream.getvalue()


def compared() -> str:
    stream = TerminalStream()
    one, other = (planned(name).decided.decision for name in ("fits", "middle"))
    words = ("--machine 4xA100-40GB --gradient-checkpointing", "--machine 8xH100-80GB")
    compare(Side(words=words[0], decision=one), Side(words=words[1], decision=other), stream)
    return stream.getvalue()


def mixed_machine() -> Machine:
    """Four GPUs, of which two pairs have NVLink."""
    machine = plan("4xRTX4090", model="1b").machine
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    nvlinks = {(0, 1): 4, (2, 3): 4}
    links = (PairLink(pair=pair, nvlinks=nvlinks.get(pair, 0), path=PciePath.SYS) for pair in pairs)
    return replace(machine, links=tuple(links))


def matrix() -> str:
    stream = TerminalStream()
    show_machine(mixed_machine(), stream)
    return stream.getvalue()


SCREENS: dict[str, Callable[[], str]] = {
    "plan": lambda: page("fits"),
    "refused": lambda: page("refused"),
    "verbose": lambda: page("fits", is_verbose=True),
    "explain": lambda: explained("fits"),
    "fastest": lambda: page("fastest"),
    "compare": compared,
    "machine": matrix,
}


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was_looked_at(
    name: str, columns: int, at: Callable[..., None], golden: Callable[[str, str], None]
) -> None:
    at(columns)
    plain = SCREENS[name]()
    assert not ESCAPE.search(plain)
    golden(f"screens/{name}-{columns}.txt", plain)
    at(columns, coloured=True)
    coloured = SCREENS[name]()
    assert ESCAPE.search(coloured)
    # What a table pads its last column with is painted too.
    stripped = [line.rstrip() for line in ESCAPE.sub("", coloured).splitlines()]
    assert plain.splitlines() == stripped
    if name == "plan":
        golden(f"screens/{name}-{columns}-coloured.txt", coloured.replace("\x1b", "<ESC>"))


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", PLANS)
def test_a_row_of_the_menu_of_strategies_is_no_wider_than_it_may_be(
    name: str, columns: int
) -> None:
    decision = planned(name).decided.decision
    for folded in (False, True):
        heading, rows = strategy_lines(decision, columns, folded=folded)
        assert max(map(length, (heading, *(row.line for row in rows)))) <= columns
        shown = [evaluated for row in rows for evaluated in row.evaluated]
        assert folded or [*decision.evaluated] == shown


@pytest.mark.parametrize("name", PLANS)
def test_what_is_too_big_reaches_over_the_budget_in_its_bar(name: str) -> None:
    decision = planned(name).decided.decision
    for row in strategy_lines(decision, 120, folded=False)[1]:
        (evaluated,), text = row.evaluated, "".join(words for words, _ in row.line)
        budget_bytes = evaluated.budget_bytes or 0
        bar = text.partition("│")[2].partition(" ")[0]
        assert (evaluated.device_bytes > budget_bytes) == bool(bar)


def cells_of(line: str) -> list[str]:
    """The cells of a row of strategies; none of another line."""
    row = line.removeprefix("> ").removeprefix("  ")
    return re.split(r"  +", row) if row.startswith(("DDP", "ZeRO")) else []


def shows_less(screen: str, whole: str) -> Iterator[str]:
    """The rows of tables whose cells are not cells of the widest screen."""
    cells: dict[str, set[str]] = {}
    for name, *others in filter(None, map(cells_of, whole.splitlines())):
        cells.setdefault(name, set()).update(others)
    strategies = re.split(r"\n(?:what to add|strategy +needs +free)", screen)[0]
    for name, *others in filter(None, map(cells_of, strategies.splitlines())):
        numbers = {each for each in others if re.fullmatch(r"-?[\d.,]+", each)}
        if not numbers <= cells.get(name, numbers):
            yield name


PAGES: dict[tuple[str, int, bool], str] = {}


def known(name: str, columns: int, is_verbose: bool, at: Callable[..., None]) -> str:
    """A page that is asked for again and again."""
    key = name, columns, is_verbose
    if key not in PAGES:
        at(columns)
        PAGES[key] = page(name, is_verbose=is_verbose)
    return PAGES[key]


def check_width(name: str, columns: int, at: Callable[..., None], *, is_verbose: bool) -> None:
    whole = known(name, 200, is_verbose, at)
    at(columns)
    screen = page(name, is_verbose=is_verbose)
    assert "…" not in screen
    assert [] == [line for line in screen.splitlines() if len(line) > columns]
    assert [] == list(shows_less(screen, whole))


@pytest.mark.parametrize("columns", range(50, 161))
def test_nothing_is_cut_and_nothing_is_wider_than_the_terminal(
    columns: int, at: Callable[..., None]
) -> None:
    """Three plans at each width, and every plan at many widths; all of them when thorough."""
    names = list(PLANS)
    for shift in range(3):
        name = names[(columns + 5 * shift) % len(names)]
        check_width(name, columns, at, is_verbose=shift == 2)


def broken_off(screen: str) -> Iterator[str]:
    """The lines that end within a clause, or within an item of a list."""
    for line, below in pairwise(screen.splitlines()):
        # A remedy begins with its options, which are indented too.
        goes_on = below.startswith("  ") and not below.startswith("  `")
        if goes_on and not (line.endswith((",", ";", ":")) or below.lstrip().startswith("--")):
            yield line


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("name", PLANS)
def test_a_line_of_a_plan_ends_behind_a_clause_or_an_item(
    name: str, columns: int, at: Callable[..., None]
) -> None:
    at(columns)
    prose, _, _ = page(name, is_verbose=True).partition("\nSizes in GiB")
    assert [] == list(broken_off(prose))


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANS)
def test_no_plan_is_cut_at_any_width(name: str, at: Callable[..., None]) -> None:
    for columns in range(50, 161):
        for is_verbose in (False, True):
            check_width(name, columns, at, is_verbose=is_verbose)


@pytest.mark.parametrize("name", ["explain", "fastest", "compare", "machine"])
def test_no_other_screen_is_cut(name: str, at: Callable[..., None]) -> None:
    for columns in range(50, 161, 10):
        at(columns)
        screen = SCREENS[name]()
        assert "…" not in screen
        assert [] == [line for line in screen.splitlines() if len(line) > columns]


def test_a_matrix_of_many_gpus_is_cut_into_parts_and_not_into_numbers(
    at: Callable[..., None],
) -> None:
    machine = plan("16xH100-80GB-SXM", model="1b").machine
    pairs = [(a, b) for a in range(16) for b in range(a + 1, 16)]
    machine = replace(machine, links=tuple(PairLink(pair=pair, nvlinks=18) for pair in pairs))
    at(50)
    stream = TerminalStream()
    show_machine(machine, stream)
    screen = stream.getvalue()
    assert 2 * len(pairs) == len(re.findall(r"(?<= )NV18(?=\s)", screen))
    assert all(len(line) <= 50 for line in screen.splitlines())


def test_a_terminal_without_unicode_sees_other_signs(at: Callable[..., None]) -> None:
    at(80)
    screen = page("fits", Ascii())
    assert screen.isascii()
    assert "> ZeRO-3 32.0 yes\n" in screen
    assert re.search(r"  ZeRO-1 +48\.1  #+\|#+ ", screen)
    draw(flowchart(planned("fits").decided.decision), stream := Ascii())
    assert len(stream.getvalue().splitlines()) == 9
