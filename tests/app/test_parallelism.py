"""Jobs whose ranks share more than data: planned, or refused by the name of what asks for it."""

import json
from pathlib import Path

import pytest
from cli.harness import Run

TRAINER = """
from accelerate import Accelerator, ParallelismConfig
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
{more}
Trainer(model=AutoModelForCausalLM.from_pretrained("m"{load}), args=args).train()
"""
ENGINE = """
import argparse, deepspeed
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, default=1)
args = deepspeed.add_config_arguments(parser).parse_args()
{more}
"""
CONFIG = '{"train_batch_size": 8, "zero_optimization": {"stage": 1}, '
HEAD = "distributed_type: DEEPSPEED\nparallelism_config:\n"
AXOLOTL = "base_model: m\nsequence_len: 512\nmicro_batch_size: 1\n"
SWIFT = "model: m\ntuner_type: full\nmax_length: 512\n"


def trainer(more: str = "", load: str = "") -> str:
    return TRAINER.format(more=more, load=load)


def engine(more: str) -> str:
    return ENGINE.format(more=more)


# A file, its text, and what the error names.
REFUSED = {
    "tp of a Trainer": (
        "t.py",
        trainer("x = ParallelismConfig(tp_size=2)"),
        "`ParallelismConfig(tp_",
    ),
    "cp of a Trainer": (
        "t.py",
        trainer("x = ParallelismConfig(cp_size=2)"),
        "cp_size=2)` in t.py l",
    ),
    "sp that is not seen": (
        "t.py",
        trainer("x = ParallelismConfig(sp_size=int(open('n').read()))"),
        "zerowiz does not plan sequence parallelism",
    ),
    "tp of transformers": ("t.py", trainer(load=', tp_plan="auto"'), "tp_plan='auto')` in t.py"),
    "mpu of an engine": (
        "t.py",
        engine("deepspeed.initialize(args=args, model=m, mpu=megatron)"),
        "`deepspeed.initialize(mpu=megatron)` in t.py line 7",
    ),
    "Ulysses of an engine": (
        "t.py",
        engine(
            "UlyssesSPAttentionHF.register_with_transformers('m', 'sdpa', sequence_parallel_size=4)\n"
            "deepspeed.initialize(args=args, model=m)"
        ),
        "zerowiz does not plan sequence parallelism",
    ),
    "a config in code": (
        "t.py",
        engine(
            "deepspeed.initialize(args=args, model=m)\n"
            'other = {"zero_optimization": {}, "tensor_parallel": {"autotp_size": 2}}'
        ),
        "`tensor_parallel.autotp_size` in t.py line 8",
    ),
    "tp of a config": (
        "c.json",
        CONFIG + '"tensor_parallel": {"autotp_size": 4}}',
        "tensor_parallel.autotp_",
    ),
    "sp of a config": (
        "c.json",
        CONFIG + '"sequence_parallel_size": 4}',
        "has `sequence_parallel_size`",
    ),
    "ep of a config": (
        "c.json",
        CONFIG + '"expert_parallel": {"enabled": true}}',
        "`expert_parallel.enabled`",
    ),
    **{
        f"{name} of Accelerate": (
            "c.yaml",
            f"{HEAD}  parallelism_config_{name}_size: 4\n",
            f"has `parallelism_config_{name}_size: 4`",
        )
        for name in ("tp", "cp", "sp")
    },
    "axolotl": ("a.yaml", f"{AXOLOTL}context_parallel_size: 4\n", "`context_parallel_size: 4`"),
    "ms-swift": ("a.yaml", f"{SWIFT}sequence_parallel_size: 4\n", "`sequence_parallel_size: 4`"),
}


def planned(here: Run, name: str, verb: str, *words: str) -> tuple[int, str]:
    """The exit code of a command for a script, a program's file or a config, and its errors."""
    is_config = name.startswith("c.")
    named = ("--config", name) if is_config else (name,)
    options = ("--machine", "8xH100", "--model", "1b", *verb.split()[1:])
    result = here(verb.split(maxsplit=1)[0], *options, *named, *words)
    return result.code, result.stderr


@pytest.mark.parametrize("case", REFUSED)
def test_ranks_that_share_more_than_data_are_refused_by_name(
    here: Run, folder: Path, case: str
) -> None:
    name, text, says = REFUSED[case]
    (folder / name).write_text(text)
    code, errors = planned(here, name, "init --yes" if name == "a.yaml" else "plan")
    assert (2, True) == (code, says in errors), errors


@pytest.mark.parametrize("case", [case for case, row in REFUSED.items() if row[0][0] == "c"])
def test_check_finds_what_plan_and_launch_refuse(here: Run, folder: Path, case: str) -> None:
    name, text, says = REFUSED[case]
    (folder / name).write_text(text)
    (folder / "train.py").write_text(trainer())
    checked = json.loads(here("check", "--json", name).stdout)["files"][0]["findings"]
    assert "other-parallelism" in [finding["name"] for finding in checked]
    launch = here(
        *("launch", "--dry-run", "--yes", "--machine", "8xH100", "--model", "1b"),
        *("--config", name, "train.py", "--output_dir", "o"),
    )
    assert (2, True) == (launch.code, says in launch.stderr), launch.stderr


def test_a_size_in_the_environment_is_refused(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLELISM_CONFIG_TP_SIZE", "4")
    result = here("plan", "--machine", "8xH100", "--model", "1b")
    assert 2 == result.code
    assert "the environment has `PARALLELISM_CONFIG_TP_SIZE=4`" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        trainer("if False:\n    ParallelismConfig(tp_size=2)"),
        trainer("ParallelismConfig(tp_size=1, sp_size=1, dp_shard_size=8)"),
        engine("deepspeed.initialize(args=args, model=m, mpu=None)"),
        engine(
            "deepspeed.tp_model_init(m, tp_size=args.tp)\ndeepspeed.initialize(args=args, model=m)"
        ),
        engine(
            'x = {"tensor_parallel": {"autotp_size": 1}}\ndeepspeed.initialize(args=args, model=m)'
        ),
    ],
)
def test_a_script_whose_ranks_share_data_alone_is_planned(
    here: Run, folder: Path, text: str
) -> None:
    (folder / "t.py").write_text(text)
    assert 0 == planned(here, "t.py", "plan")[0]


def test_an_option_of_the_script_decides(here: Run, folder: Path) -> None:
    more = "deepspeed.tp_model_init(m, tp_size=args.tp)\ndeepspeed.initialize(args=args, model=m)"
    (folder / "t.py").write_text(engine(more))
    code, errors = planned(here, "t.py", "plan", "--tp", "4")
    assert (2, True) == (
        code,
        "`--tp 4` after the script: zerowiz does not plan tensor" in errors,
    ), errors
