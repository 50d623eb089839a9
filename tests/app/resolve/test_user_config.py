"""`launch --config`: a person's own config is checked before it is run."""

from pathlib import Path

import pytest
from cli.harness import HF_PARSER, Run

LAUNCH = (
    *("launch", "--dry-run", "--accelerator", "cpu", "--gpus-per-node", "2"),
    # Little enough for any host.
    *("--model", "10m", "--seq-len", "64"),
)
RIGHT = (
    '{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",\n'
    '"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}\n'
)
TYPO = RIGHT.replace('"zero_opt', '\n"gradient_cliping": 1, "zero_opt')
BROKEN = RIGHT.replace('"stage": 2', '\n"stage": 2, "stagee": 2')
RAW = """\
import argparse
import deepspeed
import torch

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = parser.parse_args()
model = torch.nn.Linear(2, 2)
{optimizer}
engine, *_ = deepspeed.initialize(args=args, model=model, {passes})
"""


@pytest.fixture
def script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(HF_PARSER)
    return path


def launched(here: Run, folder: Path, text: str, *words: str) -> tuple[int, str, str, str]:
    (folder / "mine.json").write_text(text)
    result = here(*LAUNCH, *words, "--config", "mine.json", "train.py")
    return result.code, result.problem if result.code else "", result.hints, result.stderr


@pytest.mark.usefixtures("script")
def test_a_config_without_mistakes_is_launched_without_a_word(here: Run, folder: Path) -> None:
    code, _, _, stderr = launched(here, folder, RIGHT)
    assert (0, False) == (code, "mine.json line" in stderr)


@pytest.mark.usefixtures("script")
def test_a_warning_is_noted(here: Run, folder: Path) -> None:
    code, _, _, stderr = launched(here, folder, TYPO)
    assert 0 == code
    words = " ".join(stderr.split())
    assert "note: mine.json line 3: `gradient_cliping` is not a key" in words
    assert "(ZW101 unknown-key)" in words
    assert "`zerowiz check --script train.py mine.json`" in words
    assert "ZW101" not in launched(here, folder, TYPO, "--quiet")[3]


@pytest.mark.usefixtures("script")
def test_an_error_stops_the_launch_with_the_code_of_check(here: Run, folder: Path) -> None:
    code, problem, hints, _ = launched(here, folder, BROKEN)
    assert 6 == code
    assert "mine.json line 3: " in problem
    assert "stagee" in problem
    assert "`zerowiz check --script train.py mine.json`" in hints
    assert "`--force`" in hints


@pytest.mark.usefixtures("script")
def test_force_launches_all_the_same(here: Run, folder: Path) -> None:
    code, _, _, stderr = launched(here, folder, BROKEN, "--force")
    assert 0 == code
    assert "note: mine.json line 3: " in stderr


def test_a_comment_is_an_error_for_the_trainer_alone(here: Run, folder: Path, script: Path) -> None:
    by_hand = "# mine\n" + RIGHT.replace('"auto"', "1").replace(
        '{"enabled": 1}', '{"enabled": true}'
    )
    assert 6 == launched(here, folder, by_hand)[0]
    script.write_text(RAW.format(optimizer="", passes=""))
    assert 0 == launched(here, folder, by_hand, "--micro-batch", "1")[0]


@pytest.mark.parametrize(("passes", "expected"), [("", 6), ("optimizer=optimizer", 0)])
def test_an_optimizer_that_nobody_reads_stops_nothing(
    here: Run, folder: Path, script: Path, passes: str, expected: int
) -> None:
    built = "optimizer = torch.optim.AdamW(model.parameters())"
    script.write_text(RAW.format(optimizer=built, passes=passes))
    text = (
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},'
        ' "optimizer": {"type": "AdamX"}, "zero_optimization": {"stage": 2}}'
    )
    assert expected == launched(here, folder, text, "--micro-batch", "1")[0]


@pytest.mark.usefixtures("script")
def test_force_is_offered_only_where_it_helps(here: Run, folder: Path) -> None:
    own = RIGHT.replace('_per_gpu": "auto"', '_per_gpu": 2')
    (folder / "mine.json").write_text(own)
    words = ("--config", "mine.json", "train.py", "--per_device_train_batch_size", "4")
    result = here(*LAUNCH, *words)
    assert (6, False) == (result.code, "--force" in result.hints)
    assert 6 == here(*LAUNCH, "--force", *words).code
    (folder / "mine.yaml").write_text("a: [1\nb: }")
    result = here(*LAUNCH, "--config", "mine.yaml", "train.py")
    assert (6, False) == (result.code, "--force" in result.hints)


@pytest.mark.parametrize("name", ["nothing.json", "nothing.yaml"])
@pytest.mark.usefixtures("script")
def test_a_config_that_is_not_there_has_a_hint_that_a_launch_can_follow(
    here: Run, name: str
) -> None:
    result = here(*LAUNCH, "--config", name, "train.py")
    assert (2, f"config `{name}` does not exist") == (result.code, result.problem)
    assert "stdin" not in result.hints
    assert "remove `--config` to let zerowiz write the config" in result.hints


def test_the_batch_that_a_config_says_is_not_asked_for(here: Run, folder: Path) -> None:
    text = "import deepspeed\ndeepspeed.initialize(model=net, config='mine.json')\n"
    (folder / "train.py").write_text(text)
    own = '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}'
    code, _, hints, stderr = launched(here, folder, own)
    assert 0 == code, (hints, stderr)
    code, problem, _, _ = launched(here, folder, "{}", "--force")
    assert (3, True) == (code, "zerowiz cannot see the script's micro-batch" in problem)


def test_another_config_than_the_script_names_has_hints_that_work(here: Run, folder: Path) -> None:
    text = "import deepspeed\ndeepspeed.initialize(model=net, config='ds.json')\n"
    (folder / "train.py").write_text(text)
    own = '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}'
    (folder / "ds.json").write_text(own)
    code, problem, hints, _ = launched(here, folder, own)
    assert (2, True) == (code, "train.py line 2 names `ds.json`" in problem)
    assert ("or use `--config ds.json`" in hints, "--config-via" in hints) == (True, False)
    assert 0 == here(*LAUNCH, "--config", "ds.json", "train.py").code


@pytest.mark.usefixtures("script")
def test_a_global_batch_does_not_override_the_steps_that_a_config_says(
    here: Run, folder: Path
) -> None:
    own = RIGHT.replace('_steps": "auto"', '_steps": 4')
    said = ("--global-batch", "128", "--seq-len", "64")
    code, problem, hints, _ = launched(here, folder, own, *said)
    assert 2 == code
    assert "needs 8 micro-steps" in problem
    assert "`mine.json` says 4" in problem
    assert "set it to 8 there" in hints
    assert 0 == launched(here, folder, own.replace(": 4", ": 8"), *said)[0]


@pytest.mark.usefixtures("script")
def test_a_global_batch_and_steps_that_are_both_said_name_the_options(here: Run) -> None:
    words = ("--grad-accum", "4", "--global-batch", "128", "--seq-len", "64", "train.py")
    result = here(*LAUNCH, "--micro-batch", "8", *words)
    assert 2 == result.code
    assert "`--grad-accum 4` says 4" in result.problem
    assert "remove `--grad-accum 4`" in result.hints
    assert 0 == here(*LAUNCH, *words[2:]).code


@pytest.mark.usefixtures("script")
def test_an_option_that_is_off_is_named_as_it_was_typed(here: Run) -> None:
    off, on = "--no-gradient-checkpointing", ("train.py", "--gradient_checkpointing", "True")
    result = here(*LAUNCH, off, *on)
    assert 2 == result.code
    assert f"`{off}` conflicts" in result.problem
    assert f"or remove `{off}`" in result.hints


PLAN = ("plan", "--machine", "8xH100-80GB-SXM", "--host-memory", "1TiB", "--model", "7b")


@pytest.mark.parametrize("words", [(), ("train.py",)], ids=["no script", "a script"])
@pytest.mark.usefixtures("script")
def test_a_plan_refuses_a_config_that_deepspeed_rejects(
    here: Run, folder: Path, words: tuple[str, ...]
) -> None:
    (folder / "mine.json").write_text(BROKEN)
    refused = here(*PLAN, "--config", "mine.json", *words)
    assert (6, True) == (refused.code, "stagee" in refused.problem)
    assert "`--force`" in refused.hints
    assert 0 == here(*PLAN, "--force", "--config", "mine.json", *words).code


HALF = '"bf16": {"enabled": true}, '
BATCH = '"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}, '


@pytest.mark.parametrize(
    ("text", "strategy", "words"),
    [
        (
            HALF + '"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}',
            "ZeRO-2 with the optimizer offloaded",
            "not counted: the gradients that stage 1 keeps",
        ),
        (
            HALF + '"torch_autocast": {"enabled": true}, "zero_optimization": {"stage": 2}',
            "ZeRO-2",
            "`torch_autocast.enabled` not counted",
        ),
        (
            HALF + '"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}',
            "ZeRO-3 with everything offloaded",
            "not counted: the master weights and optimizer states",
        ),
    ],
    ids=["stage 1 with offload", "bf16 with autocast", "offload_param alone"],
)
def test_a_config_that_trains_and_is_not_counted_is_uncertain(
    here: Run, folder: Path, text: str, strategy: str, words: str
) -> None:
    (folder / "mine.json").write_text("{" + BATCH + text + "}")
    result = here(*PLAN, "--integration", "deepspeed", "--config", "mine.json")
    assert 0 == result.code, result.stderr
    shown = " ".join((result.stdout + result.stderr).split())
    assert f"Chosen {strategy}: you asked for it; it is uncertain" in shown
    assert words in shown


def test_a_stage_that_the_trainer_fills_in_is_2(here: Run, folder: Path) -> None:
    (folder / "mine.json").write_text(RIGHT.replace('"stage": 2', '"stage": "auto"'))
    result = here(*PLAN, "--integration", "hf", "--config", "mine.json")
    assert (0, True) == (result.code, "Chosen   ZeRO-2: you asked for it" in result.stdout)
