"""`plan --compare`: two plans side by side."""

import json
from pathlib import Path

import pytest
from cli.harness import HF_IN_CODE_WITH_WORDS, Run

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
        (("--machin", "4xA100-80GB"), "there is no option `--machin`"),
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
