"""`plan --compare`: two plans side by side."""

import io
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from cli.harness import HF_IN_CODE_WITH_WORDS, Run
from drawing import as_svg
from paths import ROOT, TESTS

import zerowiz
from zerowiz.ui import remedies, show
from zerowiz.ui.text import gpus, size_of

ONE = ("plan", "--model", "7b", "--machine", "8xH100-80GB-SXM")
OTHER = ("--compare", "--machine", "4xA100-80GB-SXM")


def test_what_differs_comes_first_and_what_is_the_same_last(here: Run) -> None:
    result = here(*ONE, *OTHER).good
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
    ("own", "changes", "said"),
    [
        (("--micro-batch", "2"), ("--micro-batch", "4"), "--micro-batch 2"),
        (("--no-gradient-checkpointing",), ("--stage", "3"), "as you set it"),
        (("--stage", "2"), ("--model", "13b"), "--model 7b"),
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
    result = here(*ONE, "--config", "two.json", "--compare", "--config", "three.json").good
    chosen = next(line for line in result.stdout.splitlines() if line.startswith("chosen"))
    assert ["chosen", "ZeRO-2", "ZeRO-3"] == chosen.split()


def test_both_are_for_the_script_that_stands_behind_the_options(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_IN_CODE_WITH_WORDS)
    result = here(*ONE, *OTHER, "train.py", "--compare", "anything").good
    assert "micro batch 4" in result.stdout


def test_what_both_rest_on_is_noted_once(here: Run) -> None:
    noted = here(*ONE, *OTHER).stderr.splitlines()
    assert ["note: assumed micro-batch 1"] == [line.partition(" (")[0] for line in noted]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--compare",), "needs options that make the other plan differ"),
        (("--compare", *ONE[3:]), "needs options that make the other plan differ"),
        (("--compare", "--machine", "all"), "one of them compares many machines"),
        (("--compare", "--machin", "4xA100-80GB"), "no such option: --machin"),
        (("--compare='",), "not words of a shell (no closing quotation): `'`"),
    ],
)
def test_what_cannot_be_compared_is_refused(here: Run, words: tuple[str, ...], why: str) -> None:
    refused = here(*ONE, "--json", *words)
    assert (2, True) == (refused.code, why in refused.problem)
    assert refused.problem == json.loads(refused.stdout)["error"]["message"]


def test_the_options_of_the_other_plan_can_be_listed(here: Run) -> None:
    shown = here(*ONE, "--compare", "--help")
    assert (0, "") == (shown.code, shown.stderr)
    assert "--micro-batch" in shown.stdout


@pytest.mark.parametrize(
    ("one", "other", "code"), [("70b", "1b", 0), ("1b", "70b", 0), ("70b", "65b", 4)]
)
def test_the_comparison_is_the_result_unless_nothing_fits_in_either(
    here: Run, one: str, other: str, code: int
) -> None:
    words = ("plan", "--model", one, "--machine", "1xRTX4090", "--micro-batch", "1")
    result = here(*words, "--compare", "--model", other)
    assert (code, 1) == (result.code, result.stdout.count("none (closest: "))


# `plan --html`: a file beside what is shown, of which none of a person's is lost.

PLAN = ("plan", "--machine", "4xA100-40GB", "--model", "7b", "--gradient-checkpointing")
TOO_BIG = ("plan", "--machine", "2xRTX4090", "--model", "70b")
PICTURES = ROOT / "docs" / "pictures"


def test_a_page_stands_beside_what_is_shown(here: Run) -> None:
    shown = here(*PLAN)
    written = here(*PLAN, "--html", "plan.html")
    assert (0, shown.stdout) == (written.code, written.stdout)
    assert "note: wrote `plan.html`" in written.stderr
    assert Path("plan.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_persons_file_stays_and_zerowizs_own_is_written_again(here: Run) -> None:
    Path("plan.html").write_text("mine", encoding="utf-8")
    refused = here(*PLAN, "--html", "plan.html")
    assert 1 == refused.code
    assert "was not written by zerowiz" in refused.problem
    assert "mine" == Path("plan.html").read_text(encoding="utf-8")

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


class Screen(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        """It is one."""
        return True


DRAWN: Mapping[str, Mapping[str, object]] = {
    "plan": {"machine": "4xA100-40GB", "model": "7b", "gradient_checkpointing": True},
    "nothing-fits": {"machine": "2xRTX4090", "model": "70b"},
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawing_of_the_documents_is_current(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for variable, value in (("COLUMNS", "80"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(variable, value)
    words = dict(DRAWN[name])
    planned, screen = zerowiz.plan(str(words.pop("machine")), **words), Screen()  # type: ignore[arg-type]
    decision, resolved = planned.decided.decision, planned.decided.resolved
    show.plan(decision, screen, assumed=resolved.assumed)
    if planned.remedies:
        remedies.table(planned.remedies, screen)
    job = decision.job
    made = as_svg(f"{job.model.name} on {gpus(job.machine)}", screen.getvalue(), 80)
    assert not set(re.findall(r"https?://[^\s\"]+", made)) - {"http://www.w3.org/2000/svg"}
    kept = PICTURES / f"{name}.svg"
    if request.config.getoption("--update-golden"):
        kept.write_text(made, encoding="utf-8")
    assert kept.read_text(encoding="utf-8") == made, "`make golden` draws it again"


def test_a_name_that_would_steer_a_terminal_does_not_in_a_page(here: Run, folder: Path) -> None:
    said = json.loads(here("machine", "--machine", "4xA100-40GB", "--json").stdout)
    text = json.dumps({"schema_version": 1, "machine": said.get("machine", said)})
    name = "NVIDIA A100-SXM4-40GB"
    assert name in text
    (folder / "node.json").write_text(text.replace(name, "A\\u001b[31m\\u0007\\u202e</b>"))
    words = ("--machine", "node.json", "--model", "1b", "--html", "p.html")
    assert 0 == here("plan", *words, "--gradient-checkpointing").code
    page = (folder / "p.html").read_text(encoding="utf-8").replace("\n", "")
    assert "A?[31m??&lt;/b&gt;" in page
    assert not set("\x1b\x07\u202e") & set(page)


def test_bars_that_are_a_billion_budgets_long_are_drawn(here: Run) -> None:
    gpu = {"index": 0, "name": "A", "total_bytes": 10, "free_bytes": 5}
    content = {"schema_version": 1, "machine": {"gpus": [gpu]}}
    Path("tiny.json").write_text(json.dumps(content), encoding="utf-8")
    assert 4 == here("plan", "--machine", "tiny.json", "--model", "7b").code


# A remedy that is pasted behind the command leads to what it says, in every figure.

MIXTRAL = str(TESTS / "models" / "mixtral-8x7b")


# One GPU; a slow link; many nodes; what blocks is a stage, an offload, the host, a budget.
FEW = (
    ("--machine", "RTX4090", "--model", "7b"),
    ("--machine", "2xRTX4090", "--model", "13b", "--seq-len", "16384", "--stage", "1"),
    ("--machine", "2x8xA100-80GB", "--model", "70b", "--micro-batch", "8"),
    ("--machine", "A100-40GB", "--model", MIXTRAL, "--offload", "none", "--memory-budget", "0.5"),
)


@pytest.mark.parametrize("words", FEW, ids=" ".join)
def test_a_pasted_remedy_leads_to_what_it_says(here: Run, words: Sequence[str]) -> None:
    result = here("plan", *words, "--json")
    remedies, hints = json.loads(result.stdout)["remedies"], result.hints.splitlines()
    assert (4, True) == (result.code, len(remedies) > 1)
    for remedy, hint in zip(remedies, hints, strict=True):
        found = re.match(r"`([^`]+)`: ", hint)
        assert found is not None, hint
        plan = here("plan", *words, *shlex.split(found[1]), "--json").content
        chosen = next(each for each in plan["strategies"] if each["name"] == plan["chosen"])
        figures = {name: chosen["gpu"][name] for name in ("device_bytes", "budget_bytes")}
        figures |= {name: chosen[name] for name in ("verdict", "step_seconds")}
        figures |= {"strategy": plan["chosen"]}
        assert figures == {name: remedy[name] for name in figures}, (words, hint)
        assert size_of(remedy["device_bytes"], remedy["budget_bytes"]) in hint
        rate = chosen["tokens_per_s"]
        assert rate is None or f", {rate:,.0f} tokens/s" in hint


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
        f"{call}; load `{smaller}` in loop.py line 4"
        == edits[f"--gradient-checkpointing --model {smaller}"]
    )
    assert not edits["--machine 8xB300"]
