"""`launch --config`: a person's own config is checked before it is run."""

import json
from dataclasses import dataclass
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


def launched(here: Run, folder: Path, text: str, *words: str) -> tuple[int, str, str, str]:
    (folder / "mine.json").write_text(text)
    result = here(*LAUNCH, *words, "--config", "mine.json", "train.py")
    return result.code, result.problem if result.code else "", result.hints, result.stderr


LOOP = RAW.format(optimizer="", passes="")
OWN_OPTIMIZER = RAW.format(
    optimizer="optimizer = torch.optim.AdamW(model.parameters())", passes="optimizer=optimizer"
)
ITS_OPTIMIZER = OWN_OPTIMIZER.replace("optimizer=optimizer", "")
COMMENTED = "# mine\n" + RIGHT.replace('"auto"', "1").replace('{"enabled": 1}', '{"enabled": true}')
UNKNOWN_OPTIMIZER = (
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},'
    ' "optimizer": {"type": "AdamX"}, "zero_optimization": {"stage": 2}}'
)
STEPS = RIGHT.replace('_steps": "auto"', '_steps": 4')
CHECK = "`zerowiz check --script train.py mine.json`"
ONE = ("--micro-batch", "1")
GLOBAL = ("--global-batch", "128")


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A script with a config of one's own, and how its launch ends."""

    text: str
    code: int
    script: str = HF_PARSER
    words: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    """After the script."""
    says: tuple[str, ...] = ()
    """Of the error, its hints and notes."""
    silent_of: str = ""


LAUNCHED = {
    "without mistakes": Launched(text=RIGHT, code=0, silent_of="mine.json line"),
    "a warning is noted": Launched(
        text=TYPO,
        code=0,
        says=(
            "note: mine.json line 3: `gradient_cliping` is not a key",
            "(ZW101 unknown-key)",
            CHECK,
        ),
    ),
    "a quiet launch notes none": Launched(text=TYPO, code=0, words=("--quiet",), silent_of="ZW101"),
    "an error stops it": Launched(
        text=BROKEN, code=6, says=("mine.json line 3: ", "stagee", CHECK, "`--force`")
    ),
    "force launches all the same": Launched(
        text=BROKEN, code=0, words=("--force",), says=("note: mine.json line 3: ",)
    ),
    "a comment is an error for the Trainer": Launched(text=COMMENTED, code=6),
    "a comment is none for DeepSpeed": Launched(text=COMMENTED, code=0, script=LOOP, words=ONE),
    "an unknown optimizer": Launched(
        text=UNKNOWN_OPTIMIZER, code=6, script=ITS_OPTIMIZER, words=ONE
    ),
    "an optimizer that nobody reads": Launched(
        text=UNKNOWN_OPTIMIZER, code=0, script=OWN_OPTIMIZER, words=ONE
    ),
    **{
        f"force is not offered where it does not help{' and does not' if words else ''}": Launched(
            text=RIGHT.replace('_per_gpu": "auto"', '_per_gpu": 2'),
            code=6,
            words=words,
            given=("--per_device_train_batch_size", "4"),
            silent_of="--force",
        )
        for words in ((), ("--force",))
    },
    "the steps of a config are not overridden by a global batch": Launched(
        text=STEPS,
        code=2,
        words=GLOBAL,
        says=("needs 8 micro-steps", "`mine.json` says 4", "set it to 8 there"),
    ),
    "steps that make the global batch": Launched(
        text=STEPS.replace(": 4", ": 8"), code=0, words=GLOBAL
    ),
}


@pytest.mark.parametrize("case", LAUNCHED.values(), ids=LAUNCHED)
def test_a_config_of_ones_own_is_checked_before_it_is_run(
    here: Run, folder: Path, case: Launched
) -> None:
    (folder / "train.py").write_text(case.script)
    (folder / "mine.json").write_text(case.text)
    result = here(*LAUNCH, *case.words, "--config", "mine.json", "train.py", *case.given)
    assert case.code == result.code, result.stderr
    said = " ".join(result.stderr.split())
    assert [] == [text for text in case.says if " ".join(text.split()) not in said]
    assert not case.silent_of or case.silent_of not in said


@pytest.mark.usefixtures("script")
def test_force_is_not_offered_for_a_config_that_cannot_be_read(here: Run, folder: Path) -> None:
    (folder / "mine.yaml").write_text("a: [1\nb: }")
    result = here(*LAUNCH, "--config", "mine.yaml", "train.py")
    assert (6, False) == (result.code, "--force" in result.hints)


# A machine that is not there either is said after it.
NOWHERE = ("--machine", "nothing.json")
MODEL = ("--model", "10m")


@pytest.mark.parametrize("words", [LAUNCH, ("launch", *NOWHERE), ("plan", *NOWHERE, *MODEL)])
@pytest.mark.parametrize("name", ["nothing.json", "nothing.yaml"])
@pytest.mark.usefixtures("script")
def test_a_config_that_is_not_there_has_a_hint_that_a_launch_can_follow(
    here: Run, name: str, words: tuple[str, ...]
) -> None:
    result = here(*words, "--config", name, "train.py")
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


AUTOCAST = '"torch_autocast": {"enabled": true}, "zero_optimization": {"stage": 2}'


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        (
            HALF + '"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}',
            "ZeRO-2 with the optimizer offloaded: you asked for it",
            "all gradients are counted on each GPU",
        ),
        (
            HALF + '"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}',
            "ZeRO-3 with everything offloaded: you asked for it",
            "has no `offload_optimizer`: master weights and optimizer states are counted",
        ),
        (HALF + AUTOCAST, "ZeRO-2: you asked for it", ""),
        (
            '"fp16": {"enabled": true}, ' + AUTOCAST,
            "ZeRO-2: you asked for it; it is uncertain",
            "`torch_autocast.enabled` not counted",
        ),
    ],
    ids=["stage 1 with offload", "offload_param alone", "bf16 with autocast", "fp16 and bf16"],
)
def test_a_config_that_trains_is_counted(
    here: Run, folder: Path, text: str, verdict: str, words: str
) -> None:
    (folder / "mine.json").write_text("{" + BATCH + text + "}")
    result = here(*PLAN, "--integration", "deepspeed", "--config", "mine.json").good
    shown = " ".join((result.stdout + result.stderr).split())
    assert verdict in shown
    assert words in shown
    is_uncertain = "uncertain" in verdict
    assert is_uncertain == ("not counted" in shown)


def test_autocast_over_16_bits_is_counted_where_it_changes_nothing(here: Run, folder: Path) -> None:
    """A LayerNorm computes in fp32 under it, and keeps that."""
    (folder / "mine.json").write_text("{" + BATCH + HALF + AUTOCAST + "}")
    (folder / "model").mkdir()
    config = {"model_type": "gpt_neox", "vocab_size": 100, "hidden_size": 64}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    words = ("--integration", "deepspeed", "--config", "mine.json", "--seq-len", "64")
    result = here(*PLAN[:-1], "model", *words).good
    assert "`torch_autocast.enabled` not counted" in " ".join(result.stderr.split())


def test_a_stage_that_the_trainer_fills_in_is_2(here: Run, folder: Path) -> None:
    (folder / "mine.json").write_text(RIGHT.replace('"stage": 2', '"stage": "auto"'))
    result = here(*PLAN, "--integration", "hf", "--config", "mine.json")
    assert (0, True) == (result.code, "ZeRO-2: you asked for it" in result.stdout)


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


SILENT = ACCELERATOR.format(said="")
FILLED = {
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": True},
}
OF_DEEPSPEED = "train_micro_batch_size_per_gpu: auto\nzero_optimization: {stage: 1}\n"


@pytest.mark.parametrize(
    ("script", "text", "words", "config", "says"),
    [
        pytest.param(
            SILENT,
            FILE,
            ("train.py",),
            {**FILLED, "train_micro_batch_size_per_gpu": "auto"},
            (
                '"gradient_clipping": 1.0',
                "ACCELERATE_DEEPSPEED_CONFIG_FILE=acc.ds_config.json",
                "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4",
                "--num_gpus 2",
            ),
            id="an Accelerator that says nothing",
        ),
        pytest.param(
            HF_PARSER,
            FILE,
            ("train.py", "--bf16"),
            {**FILLED, "train_micro_batch_size_per_gpu": "auto"},
            ("--gradient_accumulation_steps 4", "--deepspeed acc.ds_config.json"),
            id="a Trainer gets the accumulation as a word",
        ),
        pytest.param(
            CONFIG_ARGUMENTS,
            FILE,
            ("--micro-batch", "2", "train.py"),
            {**FILLED, "train_micro_batch_size_per_gpu": 2},
            ("--num_gpus 2",),
            id="a plain loop gets the numbers of the plan",
        ),
        pytest.param(
            SILENT,
            OF_DEEPSPEED,
            ("train.py",),
            {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 1}},
            (),
            id="a config of DeepSpeed in YAML",
        ),
    ],
)
def test_a_file_in_yaml_runs_as_the_json_that_its_program_makes_of_it(
    here: Run,
    folder: Path,
    script: str,
    text: str,
    words: tuple[str, ...],
    config: dict[str, object],
    says: tuple[str, ...],
) -> None:
    write(folder, script)
    (folder / "acc.yaml").write_text(text.replace("{precision}", "bf16"))
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", *words)
    assert config == shown(result.stdout)
    assert [] == [each for each in says if each not in result.stdout]
    assert script != CONFIG_ARGUMENTS or "ACCELERATE_" not in result.stdout
    assert not (folder / "acc.ds_config.json").exists()


def test_a_file_that_names_a_config_runs_with_that_one(here: Run, folder: Path) -> None:
    write(folder, HF_PARSER)
    (folder / "acc.yaml").write_text(NAMING)
    (folder / "z.json").write_text(JSON)
    result = here(
        *YAML_CONFIG_LAUNCH, "--gpus-per-node", "2", "--config", "acc.yaml", "train.py"
    ).good
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


STEPS_OF_FILE = "  gradient_accumulation_steps: 4\n"
NO_FLAG = "`zero3_init_flag` must be true or false"


@pytest.mark.parametrize(
    ("script", "precision", "old", "new", "code", "says"),
    [
        pytest.param(
            SILENT,
            "bf16",
            "zero_stage: 2",
            "zero_stage: 7",
            6,
            ("acc.yaml line 6: ", "`zerowiz check --script train.py acc.yaml`"),
            id="a mistake is named at its line",
        ),
        pytest.param(
            HF_IN_CODE,
            "fp16",
            STEPS_OF_FILE,
            "",
            6,
            ("`mixed_precision` is fp16 here and bf16 in",),
            id="a precision that the script contradicts",
        ),
        pytest.param(
            SILENT,
            "bf16",
            "  zero_stage",
            "  stage: 3\n  zero_stage",
            0,
            ("acc.yaml line 6: Accelerate does not read `stage` in `deepspeed_config`",),
            id="a key that Accelerate does not read is noted",
        ),
        pytest.param(
            HF_PARSER,
            "bf16",
            "  zero_stage",
            "  zero3_init_flag: tru\n  zero_stage",
            6,
            (f"acc.yaml line 6: {NO_FLAG}",),
            id="a value that a rank could not read",
        ),
        pytest.param(
            HF_PARSER,
            "bf16",
            FILE.format(precision="bf16"),
            NAMING.replace("}", ", zero3_init_flag: tru}"),
            6,
            (f"acc.yaml line 2: {NO_FLAG}",),
            id="a value that a rank could not read, beside a named config",
        ),
        pytest.param(
            ACCELERATOR.format(said="gradient_accumulation_steps=2"),
            "bf16",
            "",
            "",
            2,
            (
                "the script conflicts with `acc.yaml`",
                "`Accelerator(gradient_accumulation_steps=2)` in train.py line 5 says 2, the config 4",
            ),
            id="what the Accelerator says itself is not overridden",
        ),
        pytest.param(
            HF_LITERAL,
            "'no'",
            "steps: 4",
            "steps: 1",
            2,
            ("names `ds_config_zero0.json`, but `--config` is `acc.ds_config.json`",),
            id="a script that names another config",
        ),
        pytest.param(
            SILENT,
            "bf16",
            "num_machines: 1",
            "num_machines: 2",
            2,
            ("`--config acc.yaml`: zerowiz does not know the hosts of these 2 nodes",),
            id="two nodes need hosts",
        ),
    ],
)
def test_a_file_that_does_not_go_with_its_script_or_reader_is_told(
    here: Run,
    folder: Path,
    script: str,
    precision: str,
    old: str,
    new: str,
    code: int,
    says: tuple[str, ...],
) -> None:
    write(folder, script, precision)
    (folder / "z.json").write_text(JSON)
    file = folder / "acc.yaml"
    file.write_text(file.read_text().replace(old, new, 1))
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py")
    assert code == result.code, result.stderr
    said = " ".join(result.stderr.split())
    assert [] == [each for each in says if each not in said]
    # A precision that contradicts cannot be forced.
    assert script != HF_IN_CODE or "--force" not in result.hints


def test_of_two_nodes_of_a_file_one_may_be_planned_for(here: Run, folder: Path) -> None:
    write(folder, SILENT)
    file = folder / "acc.yaml"
    file.write_text(file.read_text().replace("num_machines: 1", "num_machines: 2"))
    words = ("--nodes", "1", "--config", "acc.yaml", "train.py")
    assert 0 == here(*YAML_CONFIG_LAUNCH, *words).code


def test_what_stops_the_launcher_of_accelerate_alone_stops_no_launch(
    here: Run, folder: Path
) -> None:
    write(folder, SILENT, "no")
    result = here(*YAML_CONFIG_LAUNCH, "--config", "acc.yaml", "train.py").good
    assert "`mixed_precision` must be" not in " ".join(result.stderr.split())
    assert "`mixed_precision` must be `bf16`" in here("check", "acc.yaml").stdout


FSDP, NO_CONFIG, NO_YAML = "distributed_type: FSDP\n", "a: 1\n", "a: [\n"
LAUNCHES_YAML, PLANS_YAML = (*YAML_CONFIG_LAUNCH, "train.py"), YAML_CONFIG_PLAN


@pytest.mark.parametrize(
    ("command", "text", "code", "problem"),
    [
        *(
            (command, text, 2, problem)
            for command in (PLANS_YAML, LAUNCHES_YAML, ("doctor", *ON_CPU, "train.py"))
            for text, problem in (
                (FSDP, "Accelerate config for FSDP, not for DeepSpeed"),
                (NO_CONFIG, "there is no DeepSpeed config in `acc.yaml`"),
            )
        ),
        *(
            (command, NO_YAML, 6, "acc.yaml line 2: syntax error: expected")
            for command in (PLANS_YAML, LAUNCHES_YAML)
        ),
    ],
)
def test_what_is_no_deepspeed_config_or_no_yaml_is_an_error_of_each_command(
    here: Run, folder: Path, command: tuple[str, ...], text: str, code: int, problem: str
) -> None:
    write(folder, HF_PARSER)
    (folder / "acc.yaml").write_text(text)
    result = here(command[0], "--config", "acc.yaml", *command[1:])
    assert problem in result.problem
    assert code == result.code


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
