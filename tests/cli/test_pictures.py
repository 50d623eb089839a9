"""`plan --html` and `--svg`: files beside what is shown, of which none of a person's is lost."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from cli.harness import Run
from paths import ROOT

PLAN = ("plan", "--machine", "4xA100-40GB", "--model", "7b", "--gradient-checkpointing")
TOO_BIG = ("plan", "--machine", "2xRTX4090", "--model", "70b")
PICTURES = ROOT / "docs" / "pictures"


def test_a_page_and_a_drawing_stand_beside_what_is_shown(here: Run) -> None:
    shown = here(*PLAN)
    written = here(*PLAN, "--html", "plan.html", "--svg", "plan.svg")

    assert 0 == written.code
    assert shown.stdout == written.stdout
    assert "note: wrote `plan.html`" in written.stderr
    assert Path("plan.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_drawing_has_all_that_a_terminal_shows_and_loads_nothing(here: Run) -> None:
    shown = here(*PLAN, "--svg", "plan.svg")
    drawn = Path("plan.svg").read_text(encoding="utf-8")
    texts = " ".join("".join(each.itertext()) for each in ET.fromstring(drawn).iter())  # noqa: S314 - our own
    words = texts.replace("\N{NO-BREAK SPACE}", " ").split()
    for name in ("zero3-offload-optimizer", "133.2", "48.1", "budget"):
        assert name in shown.stdout
        assert name in words
    addresses = set(re.findall(r"https?://[^\s\"]+", drawn))
    assert {"http://www.w3.org/2000/svg"} == addresses
    assert "font-face" not in drawn


def test_a_persons_file_stays_and_zerowizs_own_is_written_again(here: Run) -> None:
    Path("plan.html").write_text("mine", encoding="utf-8")
    refused = here(*PLAN, "--html", "plan.html", "--svg", "plan.svg")
    assert 1 == refused.code
    assert "was not written by zerowiz" in refused.problem
    assert "mine" == Path("plan.html").read_text(encoding="utf-8")
    assert not Path("plan.svg").exists()

    assert 0 == here(*PLAN, "--html", "plan.html", "--force").code
    assert "mine" != Path("plan.html").read_text(encoding="utf-8")
    assert 4 == here(*TOO_BIG, "--html", "plan.html").code
    assert "70b" in Path("plan.html").read_text(encoding="utf-8")


def test_json_stays_as_it_is(here: Run) -> None:
    plain, beside = here(*PLAN, "--json"), here(*PLAN, "--json", "--html", "plan.html")
    assert json.loads(plain.stdout) == json.loads(beside.stdout)
    assert Path("plan.html").is_file()


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("--html", "a", "--svg", "a"), 2, "both name"),
        (("--machine", "all", "--html", "a"), 2, "is for one machine"),
        (("--html", "."), 1, "cannot write"),
    ],
)
def test_what_cannot_be_written_is_said(
    here: Run, words: tuple[str, ...], code: int, what: str
) -> None:
    refused = here("plan", "--machine", "4xA100-40GB", "--model", "7b", *words)
    assert code == refused.code
    assert what in refused.problem


@pytest.mark.parametrize("name", ["plan", "nothing-fits"])
def test_a_drawing_of_the_documents_is_current(
    here: Run, request: pytest.FixtureRequest, name: str
) -> None:
    words = {"plan": PLAN, "nothing-fits": TOO_BIG}[name]
    here(*words, "--svg", "new.svg")
    made, kept = Path("new.svg").read_text(encoding="utf-8"), PICTURES / f"{name}.svg"
    if request.config.getoption("--update-golden"):
        kept.write_text(made, encoding="utf-8")
    assert kept.read_text(encoding="utf-8") == made, "`make golden` draws it again"


def test_a_name_that_would_steer_a_terminal_does_not_in_a_page(here: Run, folder: Path) -> None:
    said = json.loads(here("machine", "--machine", "4xA100-40GB", "--json").stdout)
    text = json.dumps({"schema_version": 1, "machine": said.get("machine", said)})
    name = "NVIDIA A100-SXM4-40GB"
    assert name in text
    (folder / "node.json").write_text(text.replace(name, "A\\u001b[31m\\u0007\\u202e</b>"))
    words = ("--machine", "node.json", "--model", "1b", "--html", "p.html", "--svg", "p.svg")
    assert 0 == here("plan", *words, "--gradient-checkpointing").code
    for path in (folder / "p.html", folder / "p.svg"):
        page = path.read_text(encoding="utf-8").replace("\n", "")
        assert "A?[31m??&lt;/b&gt;" in page
        assert not set("\x1b\x07\u202e") & set(page)


def test_bars_that_are_a_billion_budgets_long_are_drawn(here: Run) -> None:
    gpu = {"index": 0, "name": "A", "total_bytes": 10, "free_bytes": 5}
    content = {"schema_version": 1, "machine": {"gpus": [gpu]}}
    Path("tiny.json").write_text(json.dumps(content), encoding="utf-8")
    assert 4 == here("plan", "--machine", "tiny.json", "--model", "7b").code
