"""A config in YAML: planned with, and run as the JSON that its program makes of it."""

import json
from pathlib import Path

import pytest
from cli.harness import CONFIG_ARGUMENTS, HF_IN_CODE, HF_LITERAL, HF_PARSER, Run

ON_CPU = ("--accelerator", "cpu", "--model", "10m", "--seq-len", "64")
LAUNCH = ("launch", "--dry-run", *ON_CPU)
PLAN = ("plan", *ON_CPU)
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
    plan = json.loads(here(*PLAN, "--json", "--config", "acc.yaml").stdout)
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
    plan = json.loads(here(*PLAN, "--json", "--config", "acc.yaml", *options).stdout)
    assert expected == plan["workload"]["precision"]


def test_an_accelerator_that_says_nothing_runs_with_the_file(here: Run, folder: Path) -> None:
    write(folder, ACCELERATOR.format(said=""))
    result = here(*LAUNCH, "--config", "acc.yaml", "train.py")
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
    result = here(*LAUNCH, "--config", "acc.yaml", "train.py")
    assert 2 == result.code
    assert (
        "the script conflicts with `acc.yaml`: `Accelerator(gradient_accumulation_steps=2)` in"
        " train.py line 5 says 2, the config 4"
    ) == result.problem


def test_a_trainer_gets_the_accumulation_of_the_file_as_a_word(here: Run, folder: Path) -> None:
    write(folder, HF_PARSER)
    result = here(*LAUNCH, "--config", "acc.yaml", "train.py", "--bf16")
    assert "auto" == shown(result.stdout)["train_micro_batch_size_per_gpu"]
    assert "--gradient_accumulation_steps 4" in result.stdout
    assert "--deepspeed acc.ds_config.json" in result.stdout


def test_a_plain_loop_gets_the_numbers_of_the_plan(here: Run, folder: Path) -> None:
    write(folder, CONFIG_ARGUMENTS)
    result = here(*LAUNCH, "--config", "acc.yaml", "--micro-batch", "2", "train.py")
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
    result = here(*LAUNCH, "--gpus-per-node", "2", "--config", "acc.yaml", "train.py")
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
    result = here(*LAUNCH, "--config", "acc.yaml", "train.py")
    assert 6 == result.code
    assert "acc.yaml line 6: " in result.problem
    assert "`zerowiz check --script train.py acc.yaml`" in result.hints


def test_a_precision_that_the_script_contradicts_cannot_be_forced(here: Run, folder: Path) -> None:
    write(folder, HF_IN_CODE, "fp16")
    file = folder / "acc.yaml"
    file.write_text(file.read_text().replace("  gradient_accumulation_steps: 4\n", ""))
    result = here(*LAUNCH, "--config", "acc.yaml", "train.py")
    assert 6 == result.code
    assert "`mixed_precision` is fp16 here and bf16 in" in result.problem
    assert "--force" not in result.hints


def test_a_key_that_accelerate_does_not_read_is_noted(here: Run, folder: Path) -> None:
    write(folder, ACCELERATOR.format(said=""))
    file = folder / "acc.yaml"
    file.write_text(file.read_text().replace("  zero_stage", "  stage: 3\n  zero_stage"))
    result = here(*LAUNCH, "--config", "acc.yaml", "train.py")
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
    result = here(*LAUNCH, "--config", "acc.yaml", "train.py")
    assert 6 == result.code
    line = 2 if naming else 6
    assert f"acc.yaml line {line}: `zero3_init_flag` must be true or false" in result.problem


def test_what_stops_the_launcher_of_accelerate_alone_stops_no_launch(
    here: Run, folder: Path
) -> None:
    write(folder, ACCELERATOR.format(said=""), "no")
    result = here(*LAUNCH, "--config", "acc.yaml", "train.py")
    assert 0 == result.code
    assert "`mixed_precision` must be" not in " ".join(result.stderr.split())
    assert "`mixed_precision` must be `bf16`" in here("check", "acc.yaml").stdout


@pytest.mark.parametrize("command", [PLAN, (*LAUNCH, "train.py"), ("doctor", *ON_CPU, "train.py")])
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
    for words in (PLAN, (*LAUNCH, "train.py")):
        result = here(words[0], "--config", "acc.yaml", *words[1:])
        assert 6 == result.code
        assert "acc.yaml line 2: syntax error: expected" in result.problem


def test_a_script_that_names_another_config_is_refused(here: Run, folder: Path) -> None:
    write(folder, HF_LITERAL, "'no'")
    text = (folder / "acc.yaml").read_text().replace("steps: 4", "steps: 1")
    (folder / "acc.yaml").write_text(text)
    result = here(*LAUNCH, "--config", "acc.yaml", "train.py")
    assert "names `ds_config_zero0.json`, but `--config` is `acc.ds_config.json`" in result.problem


def test_a_config_of_deepspeed_in_yaml_is_written_as_json(here: Run, folder: Path) -> None:
    write(folder, ACCELERATOR.format(said=""))
    text = "train_micro_batch_size_per_gpu: auto\nzero_optimization: {stage: 1}\n"
    (folder / "acc.yaml").write_text(text)
    config = shown(here(*LAUNCH, "--config", "acc.yaml", "train.py").stdout)
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
    result = here(*LAUNCH, *said, "--config", "acc.yaml", "train.py")
    assert f"--num_gpus {ranks} " in result.stdout
    note = f"note: `acc.yaml` asks for 2 processes; the plan is for {ranks}"
    assert (ranks != 2) == (note in result.stderr)


def test_two_nodes_of_a_file_need_hosts(here: Run, folder: Path) -> None:
    write(folder, ACCELERATOR.format(said=""))
    file = folder / "acc.yaml"
    file.write_text(file.read_text().replace("num_machines: 1", "num_machines: 2"))
    result = here(*LAUNCH, "--config", "acc.yaml", "train.py")
    assert "`--config acc.yaml` is for 2 nodes: zerowiz does not know their hosts" == result.problem
    alone = here(*LAUNCH, "--nodes", "1", "--config", "acc.yaml", "train.py")
    assert 0 == alone.code
