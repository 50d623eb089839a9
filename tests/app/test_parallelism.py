"""Jobs whose ranks share sequences are planned; those that share more are refused by name."""

import json
from pathlib import Path

import pytest
from cli.harness import Run

TRAINER = """
from accelerate import Accelerator, ParallelismConfig
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
{more}
Trainer(model=AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B"{load}), args=args).train()
"""
ENGINE = """
import argparse, deepspeed
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, default=1)
args = deepspeed.add_config_arguments(parser).parse_args()
{more}
"""
AUTO_TP = '"tensor_parallel": {"autotp_size": 4}}'
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
    "a size that is not seen": (
        "t.py",
        trainer("x = ParallelismConfig(sp_size=int(open('n').read()))"),
        "zerowiz does not see how many GPUs share each sequence",
    ),
    "tp of transformers": ("t.py", trainer(load=', tp_plan="auto"'), "tp_plan='auto')` in t.py"),
    "mpu of an engine": (
        "t.py",
        engine("deepspeed.initialize(args=args, model=m, mpu=megatron)"),
        "`deepspeed.initialize(mpu=megatron)` in t.py line 7",
    ),
    "a config in code": (
        "t.py",
        engine(
            "deepspeed.initialize(args=args, model=m)\n"
            'other = {"zero_optimization": {}, "tensor_parallel": {"autotp_size": 2}}'
        ),
        "`tensor_parallel.autotp_size` in t.py line 8",
    ),
    "sp of a config": (
        "c.json",
        CONFIG + '"sequence_parallel_size": 4}',
        "has `sequence_parallel_size`",
    ),
    **{
        f"{name} of Accelerate": (
            "c.yaml",
            f"{HEAD}  parallelism_config_{name}_size: 4\n",
            f"has `parallelism_config_{name}_size: 4`",
        )
        for name in ("tp", "cp")
    },
    "axolotl": ("a.yaml", f"{AXOLOTL}context_parallel_size: 4\n", "`context_parallel_size: 4`"),
    "ms-swift": ("a.yaml", f"{SWIFT}deepspeed_autotp_size: 4\n", "`deepspeed_autotp_size: 4`"),
}


def planned(here: Run, name: str, verb: str, *words: str) -> tuple[int, str]:
    """The exit code of a command for a script, a program's file or a config, and its errors."""
    is_config = name.startswith("c.")
    named = ("--config", name) if is_config else (name,)
    options = ("--machine", "8xH100", *verb.split()[1:])
    text = Path(name).read_text()
    options += () if name == "t.py" and "AutoModel" in text else ("--model", "1b")
    result = here(verb.split(maxsplit=1)[0], *options, *named, *words)
    return result.code, result.stderr


# Sections of a config, a model, the GPUs, and what the error names; nothing where it is planned.
MIXTURE, DENSE = "Qwen/Qwen3-30B-A3B", "llama-3.1-8b"
SHARED_WEIGHTS = {
    "tp": ({"tensor_parallel": {"autotp_size": 4}}, DENSE, 8, ""),
    "tp of other ranks": ({"tensor_parallel": {"autotp_size": 4}}, DENSE, 6, "the job has 6 ranks"),
    "tp of heads": ({"tensor_parallel": {"autotp_size": 16}}, DENSE, 16, "8 key-value heads"),
    "tp of experts": ({"tensor_parallel": {"autotp_size": 2}}, MIXTURE, 8, "(qwen3_moe) is cut"),
    "tp of a tied head": ({"tensor_parallel": {"autotp_size": 2}}, "llama-3.2-1b", 8, "its head"),
    "tp of encoders": ({"tensor_parallel": {"autotp_size": 2}}, "gpt2", 8, "(gpt2) is cut"),
    "ep": ({"expert_parallel": {"enabled": True, "autoep_size": 8}}, MIXTURE, 8, ""),
    "ep that is off": ({"expert_parallel": {"autoep_size": 3}}, MIXTURE, 8, ""),
    "ep of other experts": (
        {"expert_parallel": {"enabled": True, "autoep_size": 3}},
        MIXTURE,
        6,
        "has 128 experts",
    ),
    "ep of no experts": (
        {"expert_parallel": {"enabled": True, "autoep_size": 2}},
        DENSE,
        8,
        "has no experts",
    ),
}


@pytest.mark.parametrize("case", SHARED_WEIGHTS)
def test_a_config_by_which_ranks_share_weights_is_planned_or_refused_with_the_reason(
    here: Run, folder: Path, case: str
) -> None:
    sections, model, ranks, says = SHARED_WEIGHTS[case]
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, **sections}
    (folder / "c.json").write_text(json.dumps(config))
    said = ("--machine", f"{ranks}xH100", "--model", model, "--seq-len", "1024", "--config")
    result = here("plan", *said, "c.json")
    assert (2 if says else result.code, True) == (result.code, says in result.stderr), result.stderr
    (folder / "t.py").write_text(engine("deepspeed.initialize(args=args, model=m)"))
    launch = here("launch", "--dry-run", "--yes", *said, "c.json", "--lr", "1e-5", "t.py")
    assert (2 if says else launch.code, True) == (launch.code, says in launch.stderr)
    assert 0 == here("check", "c.json").code


def test_ranks_that_share_layers_train_the_same_sequences(here: Run, folder: Path) -> None:
    """As many states of the linear layers, fewer replicas; a config's whole batch counts all."""
    (folder / "c.json").write_text(CONFIG + '"bf16": {"enabled": true}, ' + AUTO_TP)
    job = (*EIGHT_H100, "--seq-len", "1024", "--config", "c.json")
    planned = json.loads(here("plan", "--json", *job).stdout)
    assert (1, 1) == (planned["workload"]["micro_batch"], planned["workload"]["accumulation_steps"])
    assert {None} == {each["step_seconds"] for each in planned["strategies"]}
    shown = here("plan", "-v", *job)
    assert "2 groups of 4 GPUs = 2 sequences" in " ".join(shown.stdout.split())
    assert "cuts the linear layers between 4 GPUs" in shown.stderr


SIZED = """
def config(size=1):
    return {"zero_optimization": {}, "tensor_parallel": {"autotp_size": size}}
deepspeed.initialize(args=args, model=m)
"""


def test_what_no_number_turns_on_is_said(here: Run, folder: Path) -> None:
    """OpenRLHF trains without tensor parallelism if nobody asks for it."""
    (folder / "t.py").write_text(engine(SIZED))
    code, errors = planned(here, "t.py", "plan")
    says = "assumed without tensor parallelism, which `tensor_parallel.autotp_size` in t.py line "
    assert (0, True) == (code, says in errors), errors


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


@pytest.mark.parametrize(
    "sizes",
    [
        *("sp_size: 3", "sp_size: 16", "sp_size: many", "sp_size: -2"),
        *("sp_backend: torch", "sp_size: 4\n  parallelism_config_dp_shard_size: 4"),
    ],
)
def test_check_plan_and_launch_refuse_sizes_that_no_ranks_have(
    here: Run, folder: Path, sizes: str
) -> None:
    (folder / "c.yaml").write_text(f"num_processes: 8\n{HEAD}  parallelism_config_{sizes}\n")
    (folder / "t.py").write_text(trainer())
    words = (*LONG, "--config", "c.yaml", "t.py", "--bf16", "--output_dir", "o")
    assert 6 == here("check", "c.yaml").code
    for verb in (("plan",), ("plan", "--stage", "3"), ("launch", "--dry-run", "--yes")):
        result = here(*verb, *words)
        assert (6, True) == (result.code, "c.yaml line " in result.stderr), result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("TP_SIZE=4", "has `PARALLELISM_CONFIG_TP_SIZE=4`: zerowiz does not plan tensor"),
        ("CP_SIZE=0", "has `PARALLELISM_CONFIG_CP_SIZE=0`"),
        ("SP_SIZE=four", "has `PARALLELISM_CONFIG_SP_SIZE=four`"),
        ("SP_SIZE=-4", "has `PARALLELISM_CONFIG_SP_SIZE=-4`"),
        ("SP_SIZE=", "has `PARALLELISM_CONFIG_SP_SIZE=`"),
        ("SP_SIZE=3", "`--sequence-parallel 3`: a node has 8 GPUs"),
        ("SP_SIZE=4 SP_BACKEND=ring", "has `PARALLELISM_CONFIG_SP_BACKEND=ring`"),
        ("SP_SIZE=4 DP_SHARD_SIZE=3", "that makes 12 ranks, and the job has 8"),
        ("DP_SHARD_SIZE=3 ACCELERATE_USE_PARALLELISM_CONFIG=true", "that makes 3 ranks"),
        (
            "SP_SIZE=4 ACCELERATE_USE_PARALLELISM_CONFIG=1",
            "has `ACCELERATE_USE_PARALLELISM_CONFIG=1`",
        ),
    ],
)
def test_a_value_in_the_environment_that_is_not_planned_is_refused(
    here: Run, monkeypatch: pytest.MonkeyPatch, words: str, says: str
) -> None:
    for word in words.split():
        name, _, value = word.partition("=")
        prefix = "" if name.startswith("ACCELERATE") else "PARALLELISM_CONFIG_"
        monkeypatch.setenv(prefix + name, value)
    result = here("plan", "--machine", "8xH100", "--model", "1b")
    assert (2, True) == (result.code, says in result.stderr), result.stderr


@pytest.mark.parametrize(
    "text",
    [
        trainer("if False:\n    ParallelismConfig(tp_size=2)"),
        trainer("ParallelismConfig(tp_size=1, sp_size=1, dp_shard_size=8)"),
        trainer("if False:\n    ParallelismConfig(sp_size=1)"),
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


# What makes GPUs share sequences, beside an option.

SHARED = "args.parallelism_config = ParallelismConfig(sp_size=4{more})"
LONG = ("--machine", "8xH100", "--seq-len", "4096")


def step_of(here: Run, *words: str) -> tuple[int, int]:
    """The GPUs that share a sequence, and the sequences of an optimizer step."""
    planned = here("plan", "--json", *LONG, *words).content
    step = planned["workload"]
    shared = step["sequence_parallel"]
    return shared, step["micro_batch"] * step["accumulation_steps"] * 8 // shared


@pytest.fixture
def shared(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to say it but an option."""
    (folder / "plain.py").write_text(trainer())
    (folder / "t.py").write_text(trainer(SHARED.format(more="")))
    (folder / "e.py").write_text(engine(ULYSSES))
    (folder / "c.yaml").write_text(f"{HEAD}  parallelism_config_sp_size: 4\n")
    if request.param == "environment":
        monkeypatch.setenv("PARALLELISM_CONFIG_SP_SIZE", "4")
    return str(request.param)


ULYSSES = """
mpu = UlyssesSPAttentionHF.register_with_transformers('m', 'sdpa', sequence_parallel_size=args.tp)
deepspeed.initialize(args=args, model=m, mpu=mpu)
"""
ENGINE_JOB = ("--model", "llama-3.1-8b", "--micro-batch", "1", "--lr", "1e-5")
WAYS = {
    "script": ("t.py",),
    "engine": (*ENGINE_JOB, "e.py", "--tp", "4"),
    "file": ("--config", "c.yaml", "plain.py"),
    "environment": ("plain.py",),
    "option": ("--sequence-parallel", "4", "--grad-accum", "1", "plain.py"),
}


@pytest.mark.parametrize("shared", WAYS, indirect=True)
def test_gpus_share_sequences_by_each_way_to_say_so(here: Run, shared: str) -> None:
    words = () if shared == "engine" else ("--per_device_train_batch_size", "1", "--bf16")
    assert (4, 2) == step_of(here, *WAYS[shared], *words)


def test_the_global_batch_of_a_script_stays_where_an_option_makes_gpus_share(
    here: Run, folder: Path
) -> None:
    (folder / "plain.py").write_text(trainer())
    assert (1, 64) == step_of(here, "plain.py", "--bf16")
    assert (4, 64) == step_of(here, "--sequence-parallel", "4", "plain.py", "--bf16")
    assert (4, 4) == step_of(
        here, "--sequence-parallel", "4", "--global-batch", "4", "plain.py", "--bf16"
    )
    # So does that of a plan without a script.
    assert (1, 8) == step_of(here, "--model", "1b")
    assert (4, 8) == step_of(here, "--model", "1b", "--sequence-parallel", "4")


def test_a_script_and_an_option_that_contradict_are_refused(here: Run, folder: Path) -> None:
    (folder / "t.py").write_text(trainer(SHARED.format(more="")))
    result = here("plan", *LONG, "--sequence-parallel", "2", "t.py")
    assert (2, True) == (result.code, "`ParallelismConfig(sp_size=4)` in t.py" in result.stderr)


LAUNCH = ("launch", "--dry-run", "--yes", *LONG)


def test_a_launch_sets_what_accelerate_reads(here: Run, folder: Path) -> None:
    (folder / "plain.py").write_text(trainer("# position_ids are in the data"))
    result = here(
        *LAUNCH, "--sequence-parallel", "4", "plain.py", "--output_dir", "o", "--bf16"
    ).good
    for said in (
        "ACCELERATE_USE_PARALLELISM_CONFIG=true",
        "PARALLELISM_CONFIG_SP_SIZE=4",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE=1",
        "PARALLELISM_CONFIG_DP_SHARD_SIZE=2",
        "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION=sdpa",
    ):
        assert said in result.stdout
    alone = here(*LAUNCH, "plain.py", "--output_dir", "o")
    assert "PARALLELISM_CONFIG" not in alone.stdout


def test_a_plain_loop_cannot_be_told_to(here: Run, folder: Path) -> None:
    (folder / "t.py").write_text(engine("deepspeed.initialize(args=args, model=m)"))
    result = here(
        *LAUNCH,
        *("--model", "llama-3.1-8b", "--lr", "1e-5", "--micro-batch", "1"),
        *("--sequence-parallel", "4", "t.py"),
    )
    assert (2, True) == (result.code, "works with a Trainer or an Accelerator" in result.stderr), (
        result.stderr
    )


AUTO = ("--sequence-parallel", "auto", "--gradient-checkpointing", "--loss", "liger")


EIGHT_H100 = ("--machine", "8xH100", "--model", "llama-3.1-8b")
FOUR_H100 = ("--machine", "4xH100", "--model", "Qwen/Qwen3-4B")


@pytest.mark.parametrize(
    ("job", "tokens", "expected"),
    [
        (EIGHT_H100, "32768", 1),
        # Alone it fits with ZeRO-3, and is tight.
        (EIGHT_H100, "131072", 2),
        (EIGHT_H100, "262144", 4),
        (FOUR_H100, "262144", 2),
    ],
)
def test_as_few_gpus_share_as_let_the_job_fit(
    here: Run, job: tuple[str, ...], tokens: str, expected: int
) -> None:
    planned = json.loads(here("plan", "--json", *job, "--seq-len", tokens, *AUTO).stdout)
    assert (expected, expected) == (
        planned["workload"]["sequence_parallel"],
        planned["workload"]["accumulation_steps"],
    )
    assert planned["chosen"] is not None


def test_sharing_is_no_answer_where_the_states_do_not_fit(here: Run) -> None:
    """Llama-3.1-70B: without activations it needs 140.5 GiB on each of 8 H200, of 139.8."""
    said = ("--machine", "8xH200", "--model", "llama-3.1-70b", "--seq-len", "32768")
    leanest = ("--gradient-checkpointing", "--loss", "liger")
    planned = json.loads(here("plan", "--json", *said, *leanest).stdout)
    assert ("is_the_sequence", False) in [
        (step["question"], step["answer"]) for step in planned["flowchart"]
    ]
    offered = [option for remedy in planned["remedies"] for option in remedy["change"]]
    assert "--method" in offered
    assert "--sequence-parallel" not in offered
    screen = here("plan", *said, *leanest).stdout
    assert "ZeRO-3 188.7 no > ZeRO-3 without activations 140.5 no" in " ".join(screen.split())


def test_a_global_batch_below_the_gpus_wants_them_to_share(here: Run) -> None:
    said = (*EIGHT_H100, "--seq-len", "4096", "--global-batch", "4")
    refused = here("plan", *said)
    assert (2, True) == (refused.code, "`--sequence-parallel 2`" in refused.stderr)
    planned = json.loads(here("plan", "--json", *said, "--sequence-parallel", "2").stdout)
    assert 1 == planned["workload"]["accumulation_steps"]
    typed = here("plan", *EIGHT_H100, "--seq-len", "262144", *AUTO).stdout
    assert typed.rstrip().endswith("--sequence-parallel auto --no-script")


def test_what_helps_a_script_is_typed_as_it_says_and_cuts_what_was_said_last(
    here: Run, folder: Path
) -> None:
    (folder / "plain.py").write_text(trainer())
    long = (*EIGHT_H100, "--seq-len", "131072")
    words = ("plain.py", "--bf16", "--gradient_checkpointing", "--output_dir", "o")
    offered = json.loads(here("plan", "--json", *long, *words).stdout)["remedies"]
    changes = [remedy["change"] for remedy in offered]
    shared = offered[changes.index({"--sequence-parallel": 8})]
    assert "add `position_ids` to each batch in `plain.py`" == shared["edit"]
    cut = [bool({"--seq-len", "--machine", "--model"} & change.keys()) for change in changes]
    assert (True, False) == (any(cut), cut[0])
    assert sorted(cut) == cut
    (folder / "plain.py").write_text(trainer("# position_ids are in the data"))
    then = json.loads(here("plan", "--json", *long, "--sequence-parallel", "8", *words).stdout)
    assert shared["strategy"] == then["chosen"]


def test_auto_settles_the_words_of_a_script(here: Run, folder: Path) -> None:
    (folder / "plain.py").write_text(trainer("# position_ids are in the data"))
    said = ("launch", "--dry-run", "--yes", "--machine", "8xH100", "--seq-len", "131072")
    words = ("--sequence-parallel", "auto", "plain.py", "--bf16", "--output_dir", "o")
    result = here(*said, *words).good
    assert "GPUs for each sequence, as " in result.stderr
    assert "PARALLELISM_CONFIG_SP_SIZE=8" in result.stdout
    assert "--gradient_accumulation_steps 64" in result.stdout


def test_auto_can_be_said_in_the_answers_file(here: Run, folder: Path) -> None:
    (folder / "zerowiz.toml").write_text('sequence-parallel = "auto"\n')
    said = ("--machine", "8xH100", "--model", "llama-3.1-8b", "--seq-len", "262144")
    words = ("--gradient-checkpointing", "--loss", "liger")
    planned = json.loads(here("plan", "--json", *said, *words).stdout)
    assert 4 == planned["workload"]["sequence_parallel"]
