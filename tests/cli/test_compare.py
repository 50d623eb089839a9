"""`plan --compare`: two plans side by side."""

import json
import random
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from cli.harness import HF_IN_CODE_WITH_WORDS, Run
from paths import ROOT, TESTS

from zerowiz.ui.text import seconds, size_of

ONE = ("plan", "--model", "7b", "--machine", "8xH100-80GB-SXM")
OTHER = ("--compare", "--machine", "4xA100-80GB-SXM")


def test_what_differs_comes_first_and_what_is_the_same_last(here: Run) -> None:
    result = here(*ONE, *OTHER)
    assert 0 == result.code
    one, other, *rest = result.stdout.splitlines()
    assert "A  --machine 8xH100-80GB-SXM" == one
    assert "B  --machine 4xA100-80GB-SXM" == other
    facts = {line.split()[0]: line for line in rest if line}
    assert "8 x H100 80GB HBM3" in facts["machine"]
    assert "4 x A100-SXM4-80GB" in facts["machine"]
    assert list(facts).index("machine") < list(facts).index("strategy")
    assert rest[-1].startswith("The same in both: ")
    assert "model 7b" in rest[-1]
    assert "machine" not in rest[-1]


def test_both_plans_are_those_that_are_planned_alone(here: Run) -> None:
    both = json.loads(here(*ONE, *OTHER, "--json").stdout)["plans"]
    alone = [
        json.loads(here(*ONE, "--json").stdout),
        json.loads(here(*ONE, *OTHER[1:], "--json").stdout),
    ]
    assert alone == both


@pytest.mark.parametrize(
    "changes",
    [("--model", "13b"), ("--micro-batch", "4"), ("--stage", "3"), ("--gradient-checkpointing",)],
)
def test_anything_that_a_plan_takes_can_differ(here: Run, changes: tuple[str, ...]) -> None:
    result = here(*ONE, "--compare", *changes)
    assert 0 == result.code, result.stderr
    assert f"B  {' '.join(changes)}\n" in result.stdout


@pytest.mark.parametrize(
    ("own", "changes", "said"),
    [
        (("--micro-batch", "2"), ("--micro-batch", "4"), "--micro-batch 2"),
        (("--no-gradient-checkpointing",), ("--stage", "3"), "as you set it"),
        (
            ("--no-gradient-checkpointing",),
            ("--gradient-checkpointing",),
            "--no-gradient-checkpointing",
        ),
    ],
)
def test_the_first_plan_says_what_it_has_of_the_options_that_the_other_changes(
    here: Run, own: tuple[str, ...], changes: tuple[str, ...], said: str
) -> None:
    result = here(*ONE, *own, "--compare", *changes)
    assert [f"A  {said}", f"B  {' '.join(changes)}"] == result.stdout.splitlines()[:2]


def test_two_configs_are_compared(here: Run, folder: Path) -> None:
    for name, stage in (("two.json", 2), ("three.json", 3)):
        config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
        (folder / name).write_text(json.dumps({**config, "bf16": {"enabled": True}}))
    result = here(*ONE, "--config", "two.json", "--compare", "--config", "three.json")
    assert 0 == result.code, result.stderr
    chosen = next(line for line in result.stdout.splitlines() if line.startswith("chosen"))
    assert ["chosen", "zero2", "zero3"] == chosen.split()


def test_both_are_for_the_script_that_stands_behind_the_options(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_IN_CODE_WITH_WORDS)
    result = here(*ONE, *OTHER, "train.py", "--compare", "anything")
    assert 0 == result.code, result.stderr
    assert "micro batch 4" in result.stdout


def test_what_both_rest_on_is_noted_once(here: Run) -> None:
    noted = here(*ONE, *OTHER).stderr.splitlines()
    assert ["note: assumed micro-batch 1"] == [line.partition(" (")[0] for line in noted]


@pytest.mark.parametrize("first", [(), ("--micro-batch", "2")])
def test_what_one_of_them_assumes_alone_is_noted_without_the_rest(
    here: Run, first: tuple[str, ...]
) -> None:
    noted = here(*ONE, *first, "--compare", "--micro-batch", "4", "--seq-len", "1024").stderr
    assumed = [line for line in noted.splitlines() if line.startswith("note: assumed ")]
    assert 1 == len(assumed)
    assert 1 == noted.count("(`--precision`)")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "needs options that make the other plan differ"),
        (("--machine", "8xH100-80GB-SXM"), "needs options that make the other plan differ"),
        (("--machine", "all"), "one of them compares many machines"),
        (("--machin", "4xA100-80GB"), "no such option: --machin"),
    ],
)
def test_what_cannot_be_compared_is_refused(here: Run, words: tuple[str, ...], why: str) -> None:
    refused = here(*ONE, "--json", "--compare", *words)
    assert 2 == refused.code
    assert why in refused.problem
    assert refused.problem == json.loads(refused.stdout)["error"]["message"]


def test_a_quote_that_is_never_closed_is_refused(here: Run) -> None:
    refused = here(*ONE, "--compare='")
    assert (2, "`--compare`: `'`: no closing quotation") == (refused.code, refused.problem)


def test_the_options_of_the_other_plan_can_be_listed(here: Run) -> None:
    shown = here(*ONE, "--compare", "--help")
    assert (0, "") == (shown.code, shown.stderr)
    assert "--micro-batch" in shown.stdout


@pytest.mark.parametrize(("one", "other"), [("70b", "1b"), ("1b", "70b")])
def test_where_only_one_fits_the_comparison_is_the_result(here: Run, one: str, other: str) -> None:
    words = ("plan", "--model", one, "--machine", "1xRTX4090", "--micro-batch", "1")
    result = here(*words, "--compare", "--model", other)
    assert 0 == result.code
    assert 1 == result.stdout.count("none (closest: ")


def test_where_nothing_fits_in_either_the_exit_code_says_so(here: Run) -> None:
    none = here("plan", "--model", "70b", "--machine", "1xRTX4090", "--compare", "--model", "65b")
    assert 4 == none.code
    assert "none (closest: " in none.stdout


# `plan --html` and `--svg`: files beside what is shown, of which none of a person's is lost.

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


# A remedy that is pasted behind the command leads to what it says, in every figure.
#
# Many jobs, drawn once and for all: machines, models, methods and settings of every kind.

MIXTRAL = str(TESTS / "models" / "mixtral-8x7b")
MACHINES = (
    *("T4", "RTX4090", "2xRTX4090", "8xRTX4090", "4xA10", "A100-40GB", "4xA100-40GB", "4xL4"),
    *("8xA100-80GB", "H100-80GB-SXM", "8xH100-80GB-SXM", "2x8xA100-80GB", "2x8xV100-32GB"),
    *("8xV100-16GB", "8xH200", "p4d.24xlarge", "2xp5.48xlarge", "g5.12xlarge"),
)
MODELS = (
    *("1.5b", "7b", "13b", "70b", "405b", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-32B"),
    *("Qwen/Qwen2.5-0.5B", MIXTRAL),
)
# How many jobs in a hundred say so, and what they say.
SAID: tuple[tuple[int, Sequence[Sequence[str]]], ...] = (
    (40, [("--method", "lora"), ("--method", "qlora")]),
    (40, [("--micro-batch", each) for each in ("2", "4", "8", "12")]),
    (50, [("--seq-len", each) for each in ("512", "4096", "16384", "65536")]),
    (40, [("--gradient-checkpointing",)]),
    (25, [("--stage", each) for each in "0123"]),
    (20, [("--offload", each) for each in ("none", "optimizer", "auto")]),
    (15, [("--precision", each) for each in ("fp32", "fp16")]),
    (10, [("--trainer", each) for each in ("dpo", "reward", "grpo")]),
    (15, [("--host-memory", each) for each in ("64GiB", "256GiB", "1TiB")]),
    (10, [("--optimizer", each) for each in ("adafactor", "sgd")]),
    (10, [("--memory-budget", "0.5")]),
)
JOBS = 200


@cache
def job(number: int) -> tuple[str, ...]:
    """The options of one of the jobs."""
    draw = random.Random(number)  # noqa: S311 - the jobs are drawn once and for all
    words = ["--machine", draw.choice(MACHINES), "--model", draw.choice(MODELS)]
    for percent, choices in SAID:
        if draw.randrange(100) < percent:
            words += draw.choice(choices)
    return tuple(words)


def chosen(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(each for each in plan["strategies"] if each["name"] == plan["chosen"])


def figures(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Of the chosen strategy, as a remedy has them."""
    strategy = chosen(plan)
    sizes = {name: strategy["gpu"][name] for name in ("device_bytes", "budget_bytes")}
    time = {"step_seconds": strategy["step_seconds"]}
    return {"strategy": plan["chosen"], "verdict": strategy["verdict"], **sizes, **time}


def tokens_per_s(plan: Mapping[str, Any]) -> float | None:
    """Of the job with its fastest strategy, if memory were no matter."""
    plain = [each for each in plan["strategies"] if each["offload"] == "none"]
    return None if None in {each["tokens_per_s"] for each in plain} else max(map(_roomy, plain))


def _roomy(strategy: Mapping[str, Any]) -> float:
    """Its tokens per second where the allocator flushes nothing."""
    parts = {each["part"]: each["seconds"] for each in strategy["step_terms"]}
    whole: float = strategy["step_seconds"]
    roomy: float = whole - parts.get("allocator", 0.0)
    return float(strategy["tokens_per_s"]) * whole / roomy


def said_speed(fraction: float) -> str:
    """How much longer, or shorter, a token takes, in words."""
    if 1 / 1.03 < fraction < 1.03:
        return "as fast"
    slower, times = fraction >= 1, max(fraction, 1 / fraction)
    if times < 2:
        return f"about {100 * (times - 1):.0f} % {'slower' if slower else 'faster'}"
    return f"about {times:.{0 if times >= 10 else 1}f} times {'as slow' if slower else 'as fast'}"


def dominates(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the first gives as much for less, of what anybody can compare."""
    if {"--machine", "--interconnect"} & one["change"].keys():
        return False
    sure = ("fits", "tight")
    as_sure = one["verdict"] in sure or other["verdict"] not in sure
    if one["time_fraction"] is None or other["time_fraction"] is None:
        return one["change"].items() < other["change"].items() and as_sure
    faster = one["time_fraction"] < other["time_fraction"]
    return as_sure and faster and set(one["costs"]) <= set(other["costs"])


def holds(here: Run, words: Sequence[str]) -> int:
    """Paste each remedy of a job that does not fit; how many there are."""
    result = here("plan", *words, "--json")
    if result.code != 4:
        # It fits, or the options contradict each other.
        assert result.code in {0, 2}, result.stderr
        return 0
    assert result.hints, words
    plan = json.loads(result.stdout)
    remedies, hints = plan["remedies"], result.hints.splitlines()
    for remedy, hint in zip(remedies, hints, strict=True):
        assert not [other for other in remedies if dominates(other, remedy)], hint
        found = re.match(r"`([^`]+)`: ", hint)
        assert found is not None, hint
        pasted = here("plan", *words, *shlex.split(found[1]), "--json")
        assert 0 == pasted.code, (words, hint, pasted.stderr)
        again = json.loads(pasted.stdout)
        assert {name: remedy[name] for name in figures(again)} == figures(again), (words, hint)
        assert size_of(remedy["device_bytes"], remedy["budget_bytes"]) in hint
        if remedy["step_seconds"] is None:
            continue
        assert f"{seconds(chosen(again)['step_seconds'])} s a step" in hint
        own, now = tokens_per_s(plan), chosen(again)["tokens_per_s"]
        if own is not None and not {"--stage", "--offload"} & set(words):
            assert f", {said_speed(own / now)}" in hint, (words, hint)
    return len(remedies)


# One GPU; a slow link; many nodes; what blocks is a stage, an offload, the host, a budget.
FEW = (
    ("--machine", "RTX4090", "--model", "7b"),
    ("--machine", "2xRTX4090", "--model", "13b", "--seq-len", "16384", "--stage", "1"),
    ("--machine", "2x8xA100-80GB", "--model", "70b", "--micro-batch", "8"),
    ("--machine", "A100-40GB", "--model", MIXTRAL, "--offload", "none", "--memory-budget", "0.5"),
)


@pytest.mark.parametrize("words", FEW, ids=" ".join)
def test_a_pasted_remedy_leads_to_what_it_says(here: Run, words: Sequence[str]) -> None:
    assert holds(here, words) > 1


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(JOBS))
def test_a_pasted_remedy_of_any_job_leads_to_what_it_says(here: Run, number: int) -> None:
    holds(here, job(number))


def test_what_nothing_helps_says_so(here: Run, folder: Path) -> None:
    huge = here("plan", "--machine", "T4", "--model", "405b", "--seq-len", "10000000", "-q")
    assert (4, 1) == (huge.code, huge.hints.count("\n") + 1)
    assert huge.hints.startswith(
        "no machine that zerowiz knows has enough memory, not even 16 nodes of 8"
    )
    loop = LOOP.replace("meta-llama/Llama-2-70b-hf", "meta-llama/Llama-2-13b-hf")
    (folder / "loop.py").write_text(loop)
    two = ("plan", "-q", "--accelerator", "cpu", "--gpus-per-node", "2", "--memory-budget", "2GiB")
    on_cpu = here(*two, "--micro-batch", "1", "loop.py")
    assert (4, 1) == (on_cpu.code, on_cpu.hints.count("\n") + 1)
    assert on_cpu.hints.startswith("no change is enough on CPU ranks")
    (folder / "own.json").write_text('{"zero_optimization": {"stage": 2}}')
    words = ("plan", "-q", "--machine", "4xA100-40GB", "--model", "7b")
    own = here(*words, "--config", "own.json")
    assert 4 == own.code
    assert "zerowiz does not change `own.json`; without `--config own.json`" in own.hints
    assert "--gradient-checkpointing" in here(*words).hints


LOOP = """\
import deepspeed
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-70b-hf")
engine, *_ = deepspeed.initialize(model=model, config="ds_config.json")
engine.backward(engine(None).loss)
engine.step()
"""


def test_what_a_script_fixes_itself_is_said_with_what_to_change(here: Run, folder: Path) -> None:
    (folder / "loop.py").write_text(LOOP)
    hints = here("plan", "-q", "--machine", "8xH100-80GB-SXM", "loop.py").hints.splitlines()
    first = "; first "
    edits = {hint.partition("`: ")[0][1:]: hint.partition(first)[2] for hint in hints}
    call = "call `model.gradient_checkpointing_enable()` in `loop.py`"
    assert (
        f"{call}; wrap the model with peft in `loop.py`"
        == edits["--gradient-checkpointing --method lora"]
    )
    smaller = "codellama/CodeLlama-34b-hf"
    assert (
        f"{call}; load `{smaller}` in `loop.py`"
        == edits[f"--gradient-checkpointing --model {smaller}"]
    )
    assert not edits["--machine 8xB300"]
