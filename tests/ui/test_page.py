"""The page of a plan: it loads nothing, can be read in any way, and shows what a terminal does."""

import io
import re
from collections.abc import Mapping
from functools import cache
from html.parser import HTMLParser

import pytest
from ui.contrast import contrast

import zerowiz
from zerowiz.core.memory.allocations import MemoryPart
from zerowiz.core.workload import Accounting
from zerowiz.ui import machine, page, sentences
from zerowiz.ui.text import bare_gib

LARGEST_BYTES = 30_000
# An element that has no end.
VOID = {"meta"}

CASES: Mapping[str, Mapping[str, object]] = {
    "fits": {"machine": "4xA100-40GB", "model": "7b", "gradient_checkpointing": True},
    "nothing fits": {"machine": "2xRTX4090", "model": "70b", "offload": "none"},
    "several nodes": {"machine": "2x8xH100-80GB", "model": "13b", "interconnect": "infiniband"},
    "one GPU": {"machine": "1xH100-80GB", "model": "1b"},
    "candidates": {
        "machine": "2xH200",
        "model": "1b",
        "global_batch": 64,
        "objective": "fastest",
    },
    "uncertain": {
        "machine": "4xA100-40GB",
        "model": "7b",
        "gradient_checkpointing": True,
        "micro_batch": 2,
    },
    "on the CPU": {"machine": "cpu", "gpus_per_node": 2, "model": "10m", "sequence_tokens": 64},
    "by the rule of thumb": {
        "machine": "4xA100-40GB",
        "model": "7b",
        "accounting": Accounting.TEXTBOOK,
    },
    "pairs of links": {
        "machine": "p3dn.24xlarge",
        "model": "1b",
    },
}


class Page(HTMLParser):
    """What tests ask of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, dict[str, str], str]] = []
        self._open: list[tuple[str, dict[str, str]]] = []
        self.feed(text)
        self.close()
        assert [] == self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = tag, {name: value or "" for name, value in attrs}
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open[-1][0], f"{tag} ends {self._open[-1]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.append((*self._open[-1], data))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def of(self, tag: str) -> list[str]:
        return [text for name, _, text in self.texts if name == tag]


@cache
def planned(case: str) -> zerowiz.PlanResult:
    settings = dict(CASES[case])
    return zerowiz.plan(str(settings.pop("machine")), **settings)  # type: ignore[arg-type]


@cache
def page_of(case: str) -> str:
    result = planned(case)
    return page.page(
        result.decided.decision, result.remedies, ("assumed `$micro_batch 1`",), version="1"
    )


@pytest.fixture(params=CASES)
def text(request: pytest.FixtureRequest) -> str:
    return page_of(request.param)


def test_a_page_loads_nothing_and_is_small(text: str) -> None:
    assert LARGEST_BYTES > len(text.encode())
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bsrc=|<link|<iframe|<img|<script", text)


def test_every_part_of_a_page_has_a_name(text: str) -> None:
    parsed = Page(text)
    assert [{"lang": "en"}] == parsed.all("html")
    assert 1 == len(parsed.all("h1")) == len(parsed.all("main"))
    assert parsed.of("title")
    assert len(parsed.all("section")) == len(parsed.of("h2"))
    assert "prefers-color-scheme" in "".join(parsed.of("style"))


@pytest.mark.parametrize("case", CASES)
def test_the_table_says_what_the_plan_does(case: str) -> None:
    result = planned(case)
    cells = re.findall(r"<t[hd]>(?:<span[^>]*>)?([^<]*)", page_of(case))
    rows = {cells[at]: cells[at + 1 : at + 4] for at in range(0, len(cells), 5)}
    for each in result.strategies:
        needs, free, rate = rows[each.strategy.short_words]
        assert needs in {bare_gib(each.device_bytes), needs if "-" in needs else ""}
        assert bare_gib(each.headroom_bytes) == free
        # What does not fit has no speed.
        time = each.step_time if each.runs or each.is_host_unknown else None
        assert rate in {"-", ""} if time is None else f"{time.tokens_per_s:,.0f}" == rate


def rgb(colour: str) -> tuple[int, int, int]:
    """Of `#rrggbb`."""
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_colour_of_a_page_can_be_read(theme: int) -> None:
    ground = rgb(re.findall("--page:(#......)", page.STYLE)[theme])
    for name in ("text", "dim", "good", "doubt", "bad"):
        ink = rgb(re.findall(f"--{name}:(#......)", page.STYLE)[theme])
        assert 4.5 <= contrast(ink, ground), name
    areas = re.findall("background:(#......)", page.STYLE)
    assert len(MemoryPart) == len(areas)
    for area in map(rgb, areas):
        assert 3 <= contrast(area, ground), area
        assert 4.5 <= contrast(area, (0, 0, 0)), area


def test_what_is_typed_is_code_or_has_no_marks() -> None:
    uncertain = planned("uncertain")
    assert "`" in "; ".join(sentences.reasons(uncertain.decided.decision))
    shown = Page(page_of("uncertain")).texts + Page(uncertain._repr_html_()).texts
    assert not [text for _, _, text in shown if "`" in text]


def test_a_machine_and_a_plan_show_themselves_in_a_notebook() -> None:
    plan_html = planned("pairs of links")._repr_html_()
    read, stream = zerowiz.read_machine(str(CASES["pairs of links"]["machine"])), io.StringIO()
    machine_html = read._repr_html_()  # type: ignore[attr-defined]
    for text in (plan_html, machine_html):
        assert not re.search(r"<script|https?:", text)
        assert Page(text).all("pre")
    machine.machine(read, stream)
    assert stream.getvalue() in "".join(Page(machine_html).of("pre"))
