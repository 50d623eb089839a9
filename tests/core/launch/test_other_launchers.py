"""What a command of another launcher says, and which of its words zerowiz has nothing for."""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from zerowiz.core.launch.other_launchers import (
    LAUNCHERS,
    MODULES,
    PYTHON,
    LauncherOption,
    OtherCommand,
    find_option,
    find_trainer,
    name_way,
    read_command,
)
from zerowiz.errors import UsageError

# The tables of other launchers' options are held to the parsers of the installed libraries.


def torchrun() -> argparse.ArgumentParser:
    run = pytest.importorskip("torch.distributed.run")
    parser: argparse.ArgumentParser = run.get_args_parser()
    return parser


def accelerate() -> argparse.ArgumentParser:
    launch = pytest.importorskip("accelerate.commands.launch")
    parser: argparse.ArgumentParser = launch.launch_command_parser()
    return parser


def built_by(parse: Callable[[], object]) -> argparse.ArgumentParser:
    """The parser that a function builds and parses with."""
    seen: list[argparse.ArgumentParser] = []

    def note(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        seen.append(parser)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", note)
        with pytest.raises(KeyboardInterrupt):
            parse()
    return seen[0]


def deepspeed() -> argparse.ArgumentParser:
    runner = pytest.importorskip("deepspeed.launcher.runner")
    return built_by(lambda: runner.parse_args([]))


def torch_launch() -> argparse.ArgumentParser:
    launch = pytest.importorskip("torch.distributed.launch")
    return built_by(lambda: launch.parse_args([]))


PARSERS = {
    "torchrun": (LAUNCHERS["torchrun",], torchrun),
    "torch.distributed.launch": (MODULES["torch.distributed.launch"], torch_launch),
    "accelerate": (LAUNCHERS["accelerate", "launch"], accelerate),
    "deepspeed": (LAUNCHERS["deepspeed",], deepspeed),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PARSERS)
def test_every_option_of_the_real_parser_is_known_and_takes_as_many_words(name: str) -> None:
    launcher, build = PARSERS[name]
    wrong, seen = [], set()
    for action in build()._actions:
        for flag in action.option_strings:
            if flag in {"-h", "--help"}:
                continue
            found = find_option(launcher, flag)
            seen |= {*found}
            takes = [launcher[each].takes_word for each in found]
            if takes != [action.nargs != 0] and not found[0].endswith("*"):
                wrong.append((flag, action.nargs, found))
    assert [] == wrong
    assert {*launcher} == seen


def test_every_option_of_python_is_known_and_takes_as_many_words() -> None:
    text = subprocess.run([sys.executable, "--help"], capture_output=True, text=True, check=True)
    rows = re.findall(r"^(--?[\w-]+)( [\w|]+)? *:?", text.stdout, re.MULTILINE)
    assert rows
    # `-m mod` ends the options, so here the module is what is launched.
    rows = [(flag, word) for flag, word in rows if not flag.startswith("--help") and flag != "-m"]
    wrong = [
        (flag, word)
        for flag, word in rows
        if [PYTHON[each].takes_word for each in find_option(PYTHON, flag)] != [bool(word)]
    ]
    assert [] == wrong


_TORCHRUN_WITH_R = (
    *("--rdzv_backend", "--rdzv_endpoint", "--rdzv_id", "--rdzv_conf"),
    *("--role", "--redirects", "--run_path"),
)


@pytest.mark.parametrize(
    ("launcher", "word", "expected"),
    [
        (LAUNCHERS["torchrun",], "--nproc-per-node", ("--nproc_per_node",)),
        (LAUNCHERS["torchrun",], "--nproc", ("--nproc_per_node",)),
        (LAUNCHERS["torchrun",], "--ro", ("--role",)),
        (LAUNCHERS["torchrun",], "--r", _TORCHRUN_WITH_R),
    ],
)
def test_an_option_is_found_as_argparse_finds_it(
    launcher: Mapping[str, LauncherOption], word: str, expected: tuple[str, ...]
) -> None:
    assert {*expected} == {*find_option(launcher, word)}


def read(line: str) -> OtherCommand:
    command = read_command(shlex.split(line))
    assert command is not None
    return command


SAID: Mapping[str, Mapping[str, object]] = {
    "torchrun train.py": {},
    "torchrun --nproc_per_node 8 train.py": {"gpus_per_node": 8},
    "torchrun --nproc-per-node=8 --nnodes=2 train.py": {"gpus_per_node": 8, "nodes": 2},
    "torchrun --nproc_per_node gpu --nnodes 2:2 train.py": {"nodes": 2},
    "torchrun --rdzv_backend c10d --rdzv_endpoint h:1 --node_rank 0 --standalone train.py": {},
    "venv/bin/torchrun --nproc 4 train.py": {"gpus_per_node": 4},
    "python -m torch.distributed.run --nproc_per_node 2 train.py": {"gpus_per_node": 2},
    "python3 -m torch.distributed.launch --use_env --nproc_per_node 2 train.py": {
        "gpus_per_node": 2
    },
    "accelerate launch train.py": {},
    "accelerate-launch --num-processes 4 train.py": {"gpus_per_node": 4},
    "accelerate launch --num_processes 16 --num_machines 2 train.py": {
        "gpus_per_node": 8,
        "nodes": 2,
    },
    "accelerate launch --gpu_ids 0,3 --num_processes 2 train.py": {"gpus": "0,3"},
    "accelerate launch --gpu_ids all --multi_gpu train.py": {},
    "accelerate launch --cpu --num_processes 2 train.py": {
        "accelerator": "cpu",
        "gpus_per_node": 2,
    },
    "accelerate launch --config_file acc.yaml train.py": {"config": "acc.yaml"},
    "accelerate launch --use_deepspeed --deepspeed_config_file ds.json train.py": {
        "config": "ds.json"
    },
    "accelerate launch --use_deepspeed --zero_stage 3 --mixed_precision bf16 train.py": {
        "stage": "3",
        "precision": "bf16",
    },
    "accelerate launch --mixed_precision no --gradient_accumulation_steps 4 train.py": {
        "precision": "fp32",
        "accumulation_steps": 4,
    },
    "accelerate launch --offload_optimizer_device cpu train.py": {"offload": "optimizer"},
    "accelerate launch --offload_optimizer_device cpu --offload_param_device cpu train.py": {
        "offload": "all"
    },
    "accelerate launch --offload_optimizer_device none train.py": {"offload": "none"},
    "deepspeed train.py": {},
    "deepspeed --num_gpus 8 --master_port 1 train.py": {"gpus_per_node": 8},
    "deepspeed --num_nodes=2 -H hosts train.py": {"nodes": 2, "hostfile": "hosts"},
    "deepspeed -H=hosts -i=localhost:0 train.py": {"hostfile": "hosts", "gpus": "0"},
    "deepspeed --include localhost:0,1 --num_gpus 2 train.py": {"gpus": "0,1"},
    "deepspeed -i localhost train.py": {},
    "python -m deepspeed.launcher.runner --num_gpus 2 train.py": {"gpus_per_node": 2},
    "python -u train.py": {},
    "/usr/bin/python3.12 -W ignore -u -B train.py": {},
}


@pytest.mark.parametrize("line", SAID)
def test_a_command_of_another_launcher_says_settings(line: str) -> None:
    command = read(f"{line} --lr 1 --nproc_per_node 3")
    assert SAID[line] == command.settings
    assert SAID[line].keys() == command.said_by.keys()
    assert ("train.py", ("--lr", "1", "--nproc_per_node", "3")) == (command.target, command.args)
    assert not command.is_module
    assert shlex.split(line)[:-1] == [*command.words]


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc_per_node 8 -m",
        "accelerate launch --module --num_processes 8",
        "deepspeed --module --num_gpus 8",
        "python -u -m",
        "python -m torch.distributed.run -m",
    ],
)
def test_a_module_is_launched_as_one(line: str) -> None:
    command = read(f"{line} pkg.train --lr 1")
    assert (True, "pkg.train", ("--lr", "1")) == (command.is_module, command.target, command.args)


def test_what_has_no_effect_is_named_with_its_words() -> None:
    command = read("torchrun --max-restarts 3 --tee=3 -r 1 --master_port 1 train.py")
    assert ("--max-restarts 3", "--tee=3", "-r 1") == command.lost


def test_deepspeeds_own_words_about_the_script_are_kept() -> None:
    command = read("deepspeed --no_local_rank --launcher pdsh -H hosts train.py")
    assert (True, {"hostfile": "hosts"}) == (command.no_local_rank, command.settings)


@pytest.mark.parametrize(
    "line",
    ["train.py", "accelerate config", "accelerate", "./torchrun x", "pkg/torchrun x", "pythonic x"],
)
def test_no_other_word_starts_a_launcher(line: str) -> None:
    assert read_command(shlex.split(line)) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchrun --foo 3 train.py", "`torchrun --foo`: `--foo` is not an option"),
        ("torchrun --nproc_per_node 2 -x train.py", "`-x` is not an option"),
        ("deepspeed --gpus 3 train.py", "`deepspeed --gpus`: `--gpus` is not an option"),
        ("torchrun --n 2 train.py", "`--n` could mean `--nnodes` or `--nproc_per_node`"),
        (
            "torchrun --nproc_per_node",
            "`torchrun --nproc_per_node`: `--nproc_per_node` needs a value",
        ),
        ("torchrun --nproc_per_node 8", "`torchrun --nproc_per_node 8` has no script"),
        ("torchrun", "`torchrun` has no script"),
        ("torchrun --nproc_per_node many train.py", "`--nproc_per_node many`: it must be a whole"),
        ("torchrun --nproc_per_node cpu train.py", "`--nproc_per_node cpu`: it must be a whole"),
        ("torchrun --nnodes 1:4 train.py", "`--nnodes 1:4`: it must be a whole"),
        ("torchrun --no-python train.py", "which have no `--no-python`"),
        ("accelerate launch --use_fsdp train.py", "which have no `--use_fsdp`"),
        ("accelerate launch --fsdp_version 2 train.py", "which have no `--fsdp_version`"),
        ("accelerate launch --mixed_precision fp8 train.py", "use one of no, fp16, bf16"),
        ("accelerate launch --num_processes 3 --num_machines 2 x.py", "cannot be divided equally"),
        ("accelerate launch --offload_param_device cpu x.py", "together with the optimizer"),
        ("accelerate launch --offload_optimizer_device nvme x.py", "use one of none, cpu"),
        ("deepspeed --include worker-0:0 train.py", "zerowiz uses every slot of `$hostfile`"),
        ("deepspeed --exclude localhost:0 train.py", "select the others"),
        ("deepspeed --include localhost:0 --num_gpus 2 x.py", "conflicts with `--num_gpus 2`"),
        ("deepspeed --launcher slurm train.py", "use one of pdsh"),
        ("python -c 'print(1)'", "which have no `-c`"),
    ],
)
def test_what_zerowiz_has_nothing_for_is_named(line: str, expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(line)
    assert expected in raised.value.message


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(UsageError) as raised:
        read("accelerate launch --aws_secret_access_key abc train.py")
    assert "abc" not in raised.value.message


# What a shell script trains with, where that starts ranks of its own.


@pytest.mark.parametrize(
    ("text", "way"),
    [
        (
            "NPROC_PER_NODE=8 swift sft --model m --deepspeed zero2",
            "pass its arguments in a YAML file: `zerowiz init my.yaml`",
        ),
        (
            "export A=1\nCUDA_VISIBLE_DEVICES=$GPUS \\\n  swift rlhf \\\n  runs/dpo.yaml > log 2>&1",
            "pass its arguments in a YAML file: `zerowiz init runs/dpo.yaml`",
        ),
        ("uv run axolotl train my.yml", "pass its YAML file: `zerowiz init my.yml`"),
        (
            "FORCE_TORCHRUN=1 llamafactory-cli train a.yaml",
            "pass its YAML file: `zerowiz init a.yaml`",
        ),
        (
            "srun -N 1 nohup trl dpo --beta 0.1",
            "launch its module: `zerowiz launch -m trl.scripts.dpo --beta 0.1`",
        ),
        # What trains nothing, or is no command.
        ("version=$(swift sft --help)\npip show trl\necho trl sft\n# swift sft", None),
        ("swift infer --model m\ntrl env\naxolotl preprocess my.yml\nllamafactory-cli", None),
        ("version=$(pip show deepspeed | grep Version)\ntorchrun train.py", None),
        ("echo 'it\nswift sft'", None),
    ],
)
def test_a_program_in_a_shell_script_is_found_with_its_way(text: str, way: str | None) -> None:
    found = find_trainer(text)
    assert way == (found and name_way(found[0], found[1:]))
