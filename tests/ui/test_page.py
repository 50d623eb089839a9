"""The page of a plan: it loads nothing, can be read in any way, and its sliders show real plans."""

import json
import re
from collections.abc import Mapping
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from ui.contrast import contrast

import zerowiz
from zerowiz.app.pictures import find_grid
from zerowiz.app.reporter import SILENT
from zerowiz.core.decision.open_settings import Grid, GridCell
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.workload import Accounting
from zerowiz.probe.files import read_page_files
from zerowiz.ui import page as document
from zerowiz.ui import sentences
from zerowiz.ui.text import bare_gib

LARGEST_BYTES = 300_000
MODELS = Path(__file__).parents[1] / "models"
# An element that has no end.
VOID = {"meta", "input", "rect", "line", "circle", "path", "br"}

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
    "learned positions": {"machine": "1xH100-80GB", "model": str(MODELS / "gpt2-medium")},
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

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

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


# Of these, all plans with other settings are looked at; a second each.
WHOLE = {"fits", "nothing fits", "several nodes", "learned positions"}


@cache
def grid_of(case: str) -> Grid:
    decided = planned(case).decided
    step = decided.decision.job.workload
    if case in WHOLE:
        return find_grid(decided, SILENT)
    own = GridCell(
        micro_batch=step.micro_batch,
        sequence_tokens=step.sequence_tokens,
        decision=decided.decision,
    )
    batches, lengths = (own.micro_batch,), (own.sequence_tokens,)
    return Grid(micro_batch_stops=batches, sequence_tokens=lengths, cells=(own,), own=own)


@cache
def page_of(case: str) -> str:
    (style, script), result = read_page_files(), planned(case)
    return document.write(
        result.decided.decision,
        grid_of(case),
        result.remedies,
        ("assumed `$micro_batch 1`",),
        style=style,
        script=script,
        version="1",
    )


@pytest.fixture(params=CASES)
def text(request: pytest.FixtureRequest) -> str:
    return page_of(request.param)


def test_a_page_loads_nothing_and_is_small(text: str) -> None:
    assert LARGEST_BYTES > len(text.encode())
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bsrc=|<link|<iframe|<img", text)


def test_every_part_of_a_page_has_a_name(text: str) -> None:
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert [{"lang": "en"}] == page.all("html")
    assert 1 == len(page.all("h1")) == len(page.all("main"))
    assert page.of("title")
    for section in page.all("section"):
        assert section["aria-labelledby"] in ids
    assert {"micro-batch", "length"} == {label["for"] for label in page.all("label")}
    for slider in page.all("input"):
        assert slider["aria-valuetext"] == slider["data-stops"].split()[int(slider["value"])]
    for table in page.all("table"):
        assert table["aria-label"]
    assert all(cell["scope"] in {"row", "col"} for cell in page.all("th"))
    assert 1 == sum(attributes.get("role") == "status" for _, attributes in page.elements)
    for drawing in page.all("svg"):
        assert drawing.get("aria-hidden") == "true" or drawing["aria-label"]
    assert "prefers-color-scheme" in "".join(page.of("style"))
    assert page.all("noscript")


def plans_of(text: str) -> list[list[str]]:
    """The answer and the pictures that the sliders show, of each plan."""
    content = json.loads("".join(t for _, a, t in Page(text).texts if a.get("id") == "plans"))
    return [
        ["".join(content["pieces"][place] for place in places) for places in plan]
        for plan in content["plans"]
    ]


def test_the_sliders_reach_every_plan_and_the_pages_own(text: str) -> None:
    plans = plans_of(text)
    batch, length = Page(text).all("input")
    stops = [len(slider["data-stops"].split()) for slider in (batch, length)]
    assert stops[0] * stops[1] == len(plans)
    answered, drawn = plans[int(batch["value"]) * stops[1] + int(length["value"])]
    assert f'<div id="answer" role="status">{answered}</div>' in text
    assert f'<div id="drawn">{drawn}</div>' in text


def shown_strategies(html: str) -> dict[str, list[str]]:
    """The rows of the table of strategies."""
    rows: dict[str, list[str]] = {}
    inside, name = False, ""
    for tag, attributes, data in Page(html).texts:
        if tag == "h2":
            inside = data == "Strategies"
        if inside and tag == "th" and attributes.get("scope") == "row":
            name = data
            rows[name] = []
        if inside and tag == "td":
            rows[name].append(data)
    return rows


@pytest.mark.parametrize(
    ("case", "micro_batch", "sequence_tokens"),
    [("fits", 1, 2048), ("fits", 4, 8192), ("several nodes", 8, 512), ("nothing fits", 2, 1024)],
)
def test_a_slider_shows_what_a_plan_with_those_settings_says(
    case: str, micro_batch: int, sequence_tokens: int
) -> None:
    settings = dict(CASES[case])
    other = zerowiz.plan(
        str(settings.pop("machine")),
        micro_batch=micro_batch,
        sequence_tokens=sequence_tokens,
        **settings,  # type: ignore[arg-type]
    )
    batch, length = (s["data-stops"].split() for s in Page(page_of(case)).all("input"))
    place = batch.index(str(micro_batch)) * len(length) + length.index(str(sequence_tokens))

    said = other.to_dict()["strategies"]
    assert isinstance(said, list)
    expected = {
        evaluated.strategy.short_words: [
            bare_gib(each["gpu"]["device_bytes"]),
            bare_gib(each["gpu"]["headroom_bytes"]),
            # What does not fit has no speed.
            f"{each['tokens_per_s']:,.0f}"
            if each["tokens_per_s"] and (evaluated.runs or evaluated.is_host_unknown)
            else "-",
        ]
        for each, evaluated in zip(said, other.strategies, strict=True)
    }
    rows = shown_strategies(plans_of(page_of(case))[place][1])
    assert expected == {name: [row[0], row[1], row[3]] for name, row in rows.items()}
    verdicts = [sentences.verdict(each) for each in other.strategies]
    assert verdicts == [row[5] for row in rows.values()]


def test_settings_that_cannot_be_say_why() -> None:
    grid = grid_of("learned positions")
    assert max(grid.sequence_tokens) == 1024
    refused = zerowiz.plan("2xA100-40GB", model="1b", global_batch=8)
    divided = find_grid(refused.decided, SILENT)
    impossible = next(cell for cell in divided.cells if cell.micro_batch == 8)
    assert impossible.decision is None
    assert "`--global-batch 8` is not a multiple" in document.answer(impossible)
    assert ("", True) == (document.drawn(impossible), bool(document.drawn(divided.own)))


def rgb(colour: str) -> tuple[int, int, int]:
    """Of `#rrggbb`."""
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


@pytest.mark.parametrize("theme", [document.LIGHT, document.DARK], ids=["light", "dark"])
def test_every_colour_of_a_page_can_be_read(theme: Mapping[str, str]) -> None:
    for name in ("text", "dim", "link", "good", "doubt", "bad"):
        for ground in ("page", "card"):
            assert 4.5 <= contrast(rgb(theme[name]), rgb(theme[ground])), (name, ground)
    for part, colour in document.PARTS.items():
        assert 3 <= contrast(rgb(colour), rgb(theme["page"])), part
        assert 4.5 <= contrast(rgb(colour), (0, 0, 0)), part


def test_every_strategy_stands_in_every_picture(text: str) -> None:
    for strategy in STRATEGIES:
        assert 3 <= text.count(f">{strategy.short_words}<"), strategy.name


def test_what_is_typed_is_code_or_has_no_marks() -> None:
    uncertain = planned("uncertain")
    assert "`" in "; ".join(sentences.reasons(uncertain.decided.decision))
    shown = Page(page_of("uncertain")).texts + Page(uncertain._repr_html_()).texts
    assert not [text for _, _, text in shown if "`" in text]


def test_a_machine_and_a_plan_show_themselves_in_a_notebook() -> None:
    plan_html = planned("pairs of links")._repr_html_()
    machine_html = zerowiz.read_machine(str(CASES["pairs of links"]["machine"]))._repr_html_()  # type: ignore[attr-defined]
    for text in (plan_html, machine_html):
        assert not re.search(r"<script|https?:", text)
        assert Page(text).all("table")
    assert 4 * 5 <= machine_html.count("<td")
