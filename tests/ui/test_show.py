"""What a person sees of a plan."""

import pytest
from changed_settings import CHANGED
from ui.streams import TerminalStream

from zerowiz.core.decision.flowchart import Constraints, decide
from zerowiz.core.decision.job import Job
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.script.facts import Convention, ScriptFacts, ValueSource
from zerowiz.core.structs import replace
from zerowiz.core.workload import Accounting, Integration, Workload
from zerowiz.probe.files import read_gpu_table
from zerowiz.ui import show

JOB = Job(
    machine=parse_spec("4xA100-40GB", read_gpu_table()),
    model=model_from_size("7b", 7 * 10**9),
    workload=Workload(gradient_checkpointing=True),
)


def shown(job: Job) -> str:
    stream = TerminalStream()
    show.whole_plan(decide(job, Constraints()), stream)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


def test_a_plan_says_the_interval_of_the_chosen_strategy_within_80_columns() -> None:
    lines = shown(JOB).splitlines()
    assert [line for line in lines if line.startswith("Peak     torch allocates ")]
    said = " ".join(line.strip() for line in lines)
    assert "on any rank; another model of that size may need up to " in said
    assert "such as a Gemma3 of 44 layers x 3072, vocabulary 262144; assumes" in said
    assert (
        "7 B parameters (size), interpolated: a Llama of 32 layers x 4096, vocabulary 32000 Step"
        in said
    )
    assert max(map(len, lines)) <= 80


def test_the_rule_of_thumb_has_no_interval() -> None:
    assert "Peak " not in shown(replace(JOB, accounting=Accounting.TEXTBOOK))


# The words of the step have no place for it yet.
UNSAID = {"attention"}


@pytest.mark.parametrize("name", [name for name in CHANGED if name not in UNSAID])
def test_a_setting_can_be_read_in_the_step_of_a_plan(name: str) -> None:
    steps = {
        shown(replace(JOB, workload=step, state_dtype=step.optimizer_state_dtype))
        .partition("\nStep ")[2]
        .partition("\n\n")[0]
        for step in CHANGED[name]
    }
    assert 2 == len(steps)


def test_where_nothing_is_chosen_no_interval_is_said() -> None:
    assert "Peak " not in shown(replace(JOB, budget_bytes=0))


FACTS = ScriptFacts(path="train.py", convention=Convention.HF_IN_CODE, integration=Integration.HF)


def test_a_script_that_only_calls_a_module_is_shown_with_it() -> None:
    stream = TerminalStream()
    show.script(replace(FACTS, starts="tools/fit.py"), stream)
    assert " ".join(stream.getvalue().split()).startswith(
        "Script train.py, which calls tools/fit.py: HF Trainer"
    )


def test_a_script_that_is_seen_whole_takes_one_line() -> None:
    stream = TerminalStream()
    show.script(FACTS.with_sources(micro_batch=ValueSource(value=4, line=3, code="x")), stream)
    said = " ".join(stream.getvalue().split())
    assert (
        "Script train.py: HF Trainer with arguments in code, gets the config through environment variables"
    ) == said


def test_where_the_reading_of_a_script_ended_is_said_once_by_line() -> None:
    stream = TerminalStream()
    end = ValueSource(line=9, code="LoraConfig(**...)")
    model = ValueSource(line=4, code="load(cfg['model'])")
    show.script(FACTS.with_sources(lora_rank=end, lora_target_modules=end, model=model), stream)
    said = " ".join(stream.getvalue().split())
    assert (
        "Unseen zerowiz did not follow `load(cfg['model'])` in train.py line 4, "
        "`LoraConfig(**...)` in train.py line 9"
    ) in said
    assert 1 == said.count("train.py line 9")
