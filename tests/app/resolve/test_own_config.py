"""`launch --config`: a person's own config is checked before it is run."""

import json
from pathlib import Path

import pytest
from cli.harness import CONFIG_ARGUMENTS, HF_IN_CODE, HF_LITERAL, HF_PARSER, Run

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


# A config in YAML: planned with, and run as the JSON that its program makes of it.

ON_CPU = ("--accelerator", "cpu", "--model", "10m", "--seq-len", "64")
YAML_CONFIG_LAUNCH = ("launch", "--dry-run", *ON_CPU)
YAML_CONFIG_PLAN = ("plan", *ON_CPU)
ACCELERATOR = """\
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator({said})
model, loader = accelerator.prepare(torch.nn.Linear(2, 2), DataLoader([], batch_size=4))
"""
FILE = """\
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: cpu
  zero_stage: 2
mixed_precision: {precision}
num_machines: 1
num_processes: 2
"""
NAMING = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: z.json}\n"
JSON = (
    '{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",'
    ' "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}}\n'
)


def write(folder: Path, script: str, precision: str = "bf16") -> None:
    (folder / "train.py").write_text(script)
    (folder / "acc.yaml").write_text(FILE.format(precision=precision))


def shown(stdout: str) -> dict[str, object]:
    """The config that a dry run shows."""
    first, text = stdout.split("\n", 1)
    assert "# writes acc.ds_config.json" == first
    values, _ = json.JSONDecoder().raw_decode(text)
    assert isinstance(values, dict)
    return values


def test_a_plan_takes_stage_offload_precision_and_accumulation(here: Run, folder: Path) -> None:
    write(folder, "")
    plan = json.loads(here(*YAML_CONFIG_PLAN, "--json", "--config", "acc.yaml").stdout)
    step = plan["workload"]
    assert ("zero2-offload", 4, "bf16") == (
        plan["chosen"],
        step["accumulation_steps"],
        step["precision"],
    )
    assert "acc.ds_config.json" == plan["config_path"]


def test_the_python_api_takes_it(folder: Path) -> None:
    import zerowiz

    write(folder, "", "fp16")
    result = zerowiz.plan(zerowiz.read_machine("cpu"), model="10m", config=folder / "acc.yaml")
    assert result.chosen is not None
    assert "zero2-offload" == result.chosen.strategy.name
    path = zerowiz.write_config(result, folder / "out")
    assert folder / "out" / "acc.ds_config.json" == path
    assert {"enabled": True, "auto_cast": True} == json.loads(path.read_text())["fp16"]


def test_the_python_api_writes_nothing_of_a_config_in_json(folder: Path) -> None:
    import zerowiz

    (folder / "z.json").write_text(JSON)
    machine = zerowiz.read_machine("cpu")
    result = zerowiz.plan(machine, model="10m", config=folder / "z.json")
    assert folder / "z.json" == zerowiz.write_config(result, folder / "out")
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("precision", "options", "expected"),
    [
        ("'no'", (), "fp32"),
        ("no", (), "fp32"),
        ("fp16", (), "fp16"),
        ("'no'", ("--precision", "bf16"), "bf16"),
    ],
)
def test_no_precision_is_fp32_unless_an_option_says_another(
    here: Run, folder: Path, precision: str, options: tuple[str, ...], expected: str
) -> None:
    write(folder, "", precision)
    plan = json.loads(here(*YAML_CONFIG_PLAN, "--json", "--config", "acc.yaml", *options).stdout)
    assert expected == plan["workload"]["precision"]


def test_an_accelerator_that_says_nothing_runs_with_the_file(here: Run, folder: Path) -> None:
    write(folder, ACCELERATOR.format(said=""))
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py")
    assert {
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": True},
    } == shown(result.stdout)
    assert '"gradient_clipping": 1.0' in result.stdout
    assert "ACCELERATE_DEEPSPEED_CONFIG_FILE=acc.ds_config.json" in result.stdout
    assert "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4" in result.stdout
    assert "--num_gpus 2" in result.stdout
    assert not (folder / "acc.ds_config.json").exists()


def test_what_the_accelerator_says_itself_is_not_overridden(here: Run, folder: Path) -> None:
    write(folder, ACCELERATOR.format(said="gradient_accumulation_steps=2"))
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py")
    assert 2 == result.code
    assert (
        "the script conflicts with `acc.yaml`: `Accelerator(gradient_accumulation_steps=2)` in"
        " train.py line 5 says 2, the config 4"
    ) == result.problem


def test_a_trainer_gets_the_accumulation_of_the_file_as_a_word(here: Run, folder: Path) -> None:
    write(folder, HF_PARSER)
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py", "--bf16")
    assert "auto" == shown(result.stdout)["train_micro_batch_size_per_gpu"]
    assert "--gradient_accumulation_steps 4" in result.stdout
    assert "--deepspeed acc.ds_config.json" in result.stdout


def test_a_plain_loop_gets_the_numbers_of_the_plan(here: Run, folder: Path) -> None:
    write(folder, CONFIG_ARGUMENTS)
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "--micro-batch", "2", "train.py")
    config = shown(result.stdout)
    assert (2, 4) == (
        config["train_micro_batch_size_per_gpu"],
        config["gradient_accumulation_steps"],
    )
    assert "auto" not in config.values()
    assert "ACCELERATE_" not in result.stdout


def test_a_file_that_names_a_config_runs_with_that_one(here: Run, folder: Path) -> None:
    write(folder, HF_PARSER)
    (folder / "acc.yaml").write_text(NAMING)
    (folder / "z.json").write_text(JSON)
    result = here(*YAML_CONFIG_LAUNCH, "--gpus-per-node", "2", "--config", "acc.yaml", "train.py")
    assert 0 == result.code
    assert "--deepspeed z.json" in result.stdout
    assert "# writes" not in result.stdout


def test_init_writes_the_file_and_leaves_a_changed_one_alone(here: Run, folder: Path) -> None:
    write(folder, HF_PARSER)
    init = ("init", "--yes", *ON_CPU, "--config", "acc.yaml", "train.py")
    assert 0 == here(*init).code
    path = folder / "acc.ds_config.json"
    assert 2 == json.loads(path.read_text())["zero_optimization"]["stage"]
    assert 0 == here(*init).code
    edited = path.read_text().replace("4", "8")
    path.write_text(edited)
    result = here(*init)
    assert "`acc.ds_config.json` exists and was not written by zerowiz" in result.problem
    assert edited == path.read_text()


def test_a_mistake_is_named_at_its_line_of_the_file(here: Run, folder: Path) -> None:
    write(folder, ACCELERATOR.format(said=""))
    file = folder / "acc.yaml"
    file.write_text(file.read_text().replace("zero_stage: 2", "zero_stage: 7"))
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py")
    assert 6 == result.code
    assert "acc.yaml line 6: " in result.problem
    assert "`zerowiz check --script train.py acc.yaml`" in result.hints


def test_a_precision_that_the_script_contradicts_cannot_be_forced(here: Run, folder: Path) -> None:
    write(folder, HF_IN_CODE, "fp16")
    file = folder / "acc.yaml"
    file.write_text(file.read_text().replace("  gradient_accumulation_steps: 4\n", ""))
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py")
    assert 6 == result.code
    assert "`mixed_precision` is fp16 here and bf16 in" in result.problem
    assert "--force" not in result.hints


def test_a_key_that_accelerate_does_not_read_is_noted(here: Run, folder: Path) -> None:
    write(folder, ACCELERATOR.format(said=""))
    file = folder / "acc.yaml"
    file.write_text(file.read_text().replace("  zero_stage", "  stage: 3\n  zero_stage"))
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py")
    assert 0 == result.code
    words = " ".join(result.stderr.split())
    assert "acc.yaml line 6: Accelerate does not read `stage` in `deepspeed_config`" in words


@pytest.mark.parametrize("naming", [False, True])
def test_a_value_that_a_rank_could_not_read_ends_no_launch_late(
    here: Run, folder: Path, naming: bool
) -> None:
    write(folder, HF_PARSER)
    file = folder / "acc.yaml"
    (folder / "z.json").write_text(JSON)
    text = NAMING.replace("}", ", zero3_init_flag: tru}") if naming else file.read_text()
    file.write_text(text.replace("  zero_stage", "  zero3_init_flag: tru\n  zero_stage"))
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py")
    assert 6 == result.code
    line = 2 if naming else 6
    assert f"acc.yaml line {line}: `zero3_init_flag` must be true or false" in result.problem


def test_what_stops_the_launcher_of_accelerate_alone_stops_no_launch(
    here: Run, folder: Path
) -> None:
    write(folder, ACCELERATOR.format(said=""), "no")
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py")
    assert 0 == result.code
    assert "`mixed_precision` must be" not in " ".join(result.stderr.split())
    assert "`mixed_precision` must be `bf16`" in here("check", "acc.yaml").stdout


@pytest.mark.parametrize(
    "command",
    [YAML_CONFIG_PLAN, (*YAML_CONFIG_LAUNCH, "train.py"), ("doctor", *ON_CPU, "train.py")],
)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("distributed_type: FSDP\n", "Accelerate config for FSDP, not for DeepSpeed"),
        ("a: 1\n", "there is no DeepSpeed config in `acc.yaml`"),
    ],
)
def test_what_is_no_deepspeed_config_is_a_usage_error(
    here: Run, folder: Path, command: tuple[str, ...], text: str, problem: str
) -> None:
    write(folder, HF_PARSER)
    (folder / "acc.yaml").write_text(text)
    words = (command[0], "--config", "acc.yaml", *command[1:])
    result = here(*words)
    assert problem in result.problem
    assert 2 == result.code


def test_what_is_no_yaml_is_said(here: Run, folder: Path) -> None:
    write(folder, HF_PARSER)
    (folder / "acc.yaml").write_text("a: [\n")
    for words in (YAML_CONFIG_PLAN, (*YAML_CONFIG_LAUNCH, "train.py")):
        result = here(words[0], "--config", "acc.yaml", *words[1:])
        assert 6 == result.code
        assert "acc.yaml line 2: syntax error: expected" in result.problem


def test_a_script_that_names_another_config_is_refused(here: Run, folder: Path) -> None:
    write(folder, HF_LITERAL, "'no'")
    text = (folder / "acc.yaml").read_text().replace("steps: 4", "steps: 1")
    (folder / "acc.yaml").write_text(text)
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py")
    assert "names `ds_config_zero0.json`, but `--config` is `acc.ds_config.json`" in result.problem


def test_a_config_of_deepspeed_in_yaml_is_written_as_json(here: Run, folder: Path) -> None:
    write(folder, ACCELERATOR.format(said=""))
    text = "train_micro_batch_size_per_gpu: auto\nzero_optimization: {stage: 1}\n"
    (folder / "acc.yaml").write_text(text)
    config = shown(here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py").stdout)
    assert {
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 1},
    } == config


@pytest.mark.parametrize(
    ("said", "ranks"), [((), 2), (("--gpus-per-node", "1"), 1), (("--gpus-per-node", "3"), 3)]
)
def test_the_file_says_how_many_ranks_unless_an_option_does(
    here: Run, folder: Path, said: tuple[str, ...], ranks: int
) -> None:
    write(folder, ACCELERATOR.format(said=""))
    result = here(*YAML_CONFIG_LAUNCH, *said, "--config", "acc.yaml", "train.py")
    assert f"--num_gpus {ranks} " in result.stdout
    note = f"note: `acc.yaml` asks for 2 processes; the plan is for {ranks}"
    assert (ranks != 2) == (note in result.stderr)


def test_two_nodes_of_a_file_need_hosts(here: Run, folder: Path) -> None:
    write(folder, ACCELERATOR.format(said=""))
    file = folder / "acc.yaml"
    file.write_text(file.read_text().replace("num_machines: 1", "num_machines: 2"))
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py")
    assert "`--config acc.yaml`: zerowiz does not know the hosts of these 2 nodes" == result.problem
    alone = here(*YAML_CONFIG_LAUNCH, "--nodes", "1", "--config", "acc.yaml", "train.py")
    assert 0 == alone.code
