"""On the CPU accelerator the precision is what the CPU computes; a bf16 that was asked for warns."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli.harness import CONFIG_ARGUMENTS, HF_IN_CODE, HF_PARSER, Result, Run
from paths import TEMPLATES
from probe.scripts import SCRIPTS

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "10m", "--seq-len", "64")
COMMANDS: dict[str, tuple[str, ...]] = {
    "plan": ("plan", *CPU),
    "init": ("init", "--yes", *CPU),
    "launch": ("launch", "--dry-run", *CPU),
    "doctor": ("doctor", *CPU),
    "measure": ("measure", "--dry-run", *CPU),
}
ON_SCRIPTS = ("init", "launch", "doctor")

WHY = "fp32, as this CPU has no bf16 instructions (`--precision`)"
WARNING = "torch emulates bf16"


@pytest.fixture
def avx2(here: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run on a CPU whose oneDNN is held to AVX2, as on a CPU that has no more."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    return here


def said(result: Result) -> str:
    """All that was said, folded lines joined."""
    assert result.code == 0, result.stderr
    return " ".join((result.stdout + result.stderr).split())


def written(folder: Path, script: str) -> tuple[str, ...]:
    """The words that name this script, once it is there."""
    (folder / "train.py").write_text(script)
    return ("train.py",)


def words_of(command: str, folder: Path) -> tuple[str, ...]:
    """A loop whose precision the config decides, for the commands that read a script."""
    if command not in ON_SCRIPTS:
        return ()
    return ("--micro-batch", "2", *written(folder, CONFIG_ARGUMENTS))


ASKED = ("--precision", "bf16")


@pytest.mark.parametrize(
    ("command", "options", "script", "script_args", "expected"),
    [
        *((command, (), None, (), WHY) for command in COMMANDS),
        *((command, ASKED, None, (), WARNING) for command in COMMANDS),
        *((command, (), HF_IN_CODE, (), WARNING) for command in ON_SCRIPTS),
        *((command, (), HF_PARSER, ("--bf16",), WARNING) for command in ("launch", "doctor")),
        ("plan", ("--torch-autocast", "bf16"), None, (), WARNING),
    ],
)
def test_one_line_says_why_it_is_fp32_or_warns_of_the_bf16_that_was_asked_for(
    avx2: Run,
    folder: Path,
    command: str,
    options: tuple[str, ...],
    script: str | None,
    script_args: tuple[str, ...],
    expected: str,
) -> None:
    words = words_of(command, folder) if script is None else written(folder, script)
    text = said(avx2(*COMMANDS[command], *options, *words, *script_args))
    counts = {line: text.count(line) for line in (WHY, WARNING)}
    assert {WHY: 0, WARNING: 0, expected: 1} == counts


def test_the_config_that_is_written_computes_in_fp32(avx2: Run, folder: Path) -> None:
    assert 0 == avx2(*COMMANDS["init"], *words_of("init", folder)).code
    [config] = (json.loads(path.read_text()) for path in folder.glob("ds_config_zero?.json"))
    enabled = [config.get(section, {}).get("enabled", False) for section in ("bf16", "fp16")]
    assert [False, False] == enabled


def test_a_quiet_plan_says_nothing_of_it(avx2: Run) -> None:
    assert "" == avx2(*COMMANDS["plan"], "--precision", "bf16", "--quiet").stderr


def test_doctor_gives_the_warning_as_a_finding_with_its_remedy(avx2: Run) -> None:
    result = avx2(*COMMANDS["doctor"], "--json", "--precision", "bf16")
    [finding] = [each for each in json.loads(result.stdout)["findings"] if "bf16" in each["what"]]
    assert ("PF604", "warning") == (finding["code"], finding["severity"])
    assert any("--precision fp32" in mend for mend in finding["mends"])


def test_fp16_that_deepspeed_would_refuse_ends_the_launch_before_it_starts(
    avx2: Run, folder: Path
) -> None:
    result = avx2(*COMMANDS["launch"], "--precision", "fp16", *words_of("launch", folder))
    assert 5 == result.code
    assert "the job uses fp16, and this CPU has no fp16 instructions" in result.problem


def planned(result: Result) -> dict[str, Any]:
    assert result.code == 0, result.stderr
    content: dict[str, Any] = json.loads(result.stdout)
    return content


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ({"computes_bf16": True}, "bf16"),
        ({"computes_bf16": False}, "fp32"),
        ({"computes_bf16": None}, "bf16"),
        # As it was saved before this was read.
        ({}, "bf16"),
    ],
)
def test_a_saved_cpu_machine_is_planned_with_what_it_computes(
    here: Run, folder: Path, host: dict[str, bool | None], expected: str
) -> None:
    assert 0 == here("machine", "--accelerator", "cpu", "--save", "cpu.json").code
    content = json.loads((folder / "cpu.json").read_text())
    for key in ("computes_bf16", "computes_fp16"):
        del content["machine"]["host"][key]
    content["machine"]["host"] |= host
    (folder / "cpu.json").write_text(json.dumps(content))
    plan = planned(here("plan", "--json", "--machine", "cpu.json", "--model", "10m"))
    assert expected == plan["workload"]["precision"]
    assert host.get("computes_bf16") is plan["machine"]["host"]["computes_bf16"]


def test_the_machine_says_what_its_cpu_does(avx2: Run) -> None:
    assert "; emulates bf16" in said(avx2("machine", "--accelerator", "cpu"))


AUTOCAST = ("plan", "--machine", "4xA100-40GB", "--model", "10m", "--torch-autocast", "bf16")
BF16 = '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}'


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        (
            ("--optimizer-state-dtype", "bf16"),
            "keeps fp32 weights, `--optimizer-state-dtype bf16` needs bf16",
            "remove one of the two",
        ),
        (("--config", "mine.json"), "`--precision bf16`", "`--precision` is set by `mine.json`"),
        (("--precision", "bf16"), "`--precision bf16`", "remove one of the two: `--precision`"),
    ],
)
def test_autocast_is_refused_with_what_else_was_said(
    here: Run, folder: Path, words: tuple[str, ...], problem: str, hint: str
) -> None:
    (folder / "mine.json").write_text(BF16)
    result = here(*AUTOCAST, *words)
    assert 2 == result.code
    assert result.problem.startswith("`--torch-autocast")
    assert problem in result.problem
    assert hint in result.hints
    assert ("is set by" in result.hints) == ("--config" in words)


def test_autocast_is_refused_with_the_line_of_the_script(here: Run, folder: Path) -> None:
    words = written(folder, HF_IN_CODE)
    result = here("launch", "--dry-run", *AUTOCAST[1:], *words)
    assert 2 == result.code
    assert re.search(r"`--precision` is set by .*bf16=True.* in train.py line \d+", result.hints)


# A script's trainer is planned with, and what of it nobody counts is never said to fit.

H100 = ("--machine", "p5.48xlarge", "--model", "8b", "--precision", "bf16")


def planned_trainers(
    here: Run, name: str, folder: Path, *words: str
) -> tuple[Result, dict[str, Any]]:
    """What `plan --json` says of one of the scripts of tests/probe."""
    shutil.copy(SCRIPTS / f"{name}.py", folder / "train.py")
    result = here("plan", "--json", *H100, *words)
    return result, planned(result)


@pytest.mark.parametrize(
    ("name", "words", "step", "fits", "says"),
    [
        pytest.param(
            "trl_dpo_parser",
            ("train.py",),
            {"trainer": "dpo", "reference": "model", "sequence_tokens": 1024},
            True,
            "",
            id="the step is that of the trainer",
        ),
        pytest.param(
            "trl_dpo_parser",
            ("--method", "lora", "train.py"),
            {"reference": "none"},
            True,
            "",
            id="adapters that an option asks for need no reference",
        ),
        pytest.param(
            "trl_grpo_parser",
            ("train.py", "--max_completion_length", "4096"),
            {"sequence_tokens": 4096 + 512, "completion_tokens": 4096},
            True,
            "4608 tokens per sequence",
            id="a prompt that nothing cuts is assumed",
        ),
        pytest.param(
            "trl_grpo_vllm",
            ("train.py",),
            {"generation_batch": 4 * 4},
            False,
            "",
            id="vLLM in the same GPUs never fits",
        ),
        pytest.param(
            "trl_grpo_parser",
            ("train.py", "--generation_batch_size", "128"),
            {"generation_batch": 128 // 8},
            True,
            "",
            id="what is generated at a time is as the script says",
        ),
        pytest.param(
            "trl_grpo_parser",
            ("--micro-batch", "3", "train.py", "--num_generations", "16"),
            {},
            True,
            "24 completions are generated at once by all GPUs, but `--num_generations 16`",
            id="completions of a prompt that are not generated at once are noted",
        ),
        pytest.param(
            "trl_grpo_parser",
            ("train.py", "--use_vllm", "--vllm_mode", "server"),
            {},
            True,
            "`--vllm_mode server` after the script: vLLM runs as a server",
            id="a server takes nothing here and is named",
        ),
        pytest.param(
            "trl_own_loss",
            ("train.py",),
            {},
            False,
            "train.py line 7: `ContrastiveTrainer.compute_loss`",
            id="a loss of the script is uncertain",
        ),
        pytest.param(
            "trl_dpo_parser",
            (
                *("train.py", "--gradient_checkpointing", "True"),
                *("--gradient_checkpointing_kwargs", '{"every_n_layers": 4}'),
            ),
            {"gradient_checkpointing": True},
            True,
            "one layer in 4 is checkpointed",
            id="layers that are not checkpointed are counted",
        ),
    ],
)
def test_a_script_with_a_trainer_is_planned_as_what_it_trains(
    here: Run,
    folder: Path,
    name: str,
    words: tuple[str, ...],
    step: dict[str, object],
    fits: bool,
    says: str,
) -> None:
    result, plan = planned_trainers(here, name, folder, *words)
    assert step == {key: plan["workload"][key] for key in step}
    verdicts = {each["verdict"] for each in plan["strategies"]}
    assert fits is bool(verdicts & {"fits", "tight"})
    assert says in " ".join(result.stderr.split())


def test_a_reference_costs_what_the_model_weighs_below_stage_3(here: Run, folder: Path) -> None:
    def held(reference: str) -> set[int]:
        words = ("--reference", reference, "train.py")
        _, plan = planned_trainers(here, "trl_dpo_parser", folder, *words)
        zero2 = next(each for each in plan["strategies"] if each["name"] == "zero2")
        lines = zero2["gpu"]["lines"]
        return {each["bytes"] for each in lines if each["part"] == "reference model"}

    assert ({2 * 8_000_000_000}, set()) == (held("model"), held("precomputed"))


def test_a_batch_that_generates_whole_prompts_is_not_noted(here: Run, folder: Path) -> None:
    whole, _ = planned_trainers(here, "trl_grpo_parser", folder, "train.py")
    assert "completions are generated at once" not in " ".join(whole.stderr.split())


def test_vllm_in_the_same_gpus_takes_its_share_of_them(here: Run, folder: Path) -> None:
    _, plan = planned_trainers(here, "trl_grpo_vllm", folder, "train.py")
    total_bytes = plan["machine"]["gpus"][0]["total_bytes"]
    assert {int(0.4 * total_bytes)} == {each["gpu"]["vllm_bytes"] for each in plan["strategies"]}


def test_a_loss_of_the_script_is_counted_once_it_is_named(here: Run, folder: Path) -> None:
    named, plan = planned_trainers(here, "trl_own_loss", folder, "--trainer", "dpo", "train.py")
    assert "ContrastiveTrainer" not in named.stderr
    assert not [each for each in plan["strategies"] if each["gpu"]["interval"]["uncounted"]]
    assert "dpo" == plan["workload"]["trainer"]


def test_a_trainer_that_a_script_builds_is_no_other(here: Run, folder: Path) -> None:
    shutil.copy(SCRIPTS / "trl_dpo_parser.py", folder / "train.py")
    result = here("plan", *H100, "--trainer", "grpo", "train.py")
    assert 2 == result.code
    assert "`--trainer grpo` conflicts with the script: `DPOTrainer(...)`" in result.stderr


def test_a_sleeping_vllm_is_launched_without_segments_that_expand(here: Run, folder: Path) -> None:
    shutil.copy(SCRIPTS / "trl_grpo_parser.py", folder / "train.py")
    words = ("--completion-tokens", "64", "train.py", "--use_vllm")
    commands = [
        here("launch", "--dry-run", "--json", "--yes", *H100, *more, *words)
        for more in ((), ("--vllm-sleeps",))
    ]
    settings = [json.loads(each.stdout)["env"]["PYTORCH_CUDA_ALLOC_CONF"] for each in commands]
    assert ["expandable_segments:True", "expandable_segments:False"] == settings


# What is said of a job reaches its script, where the script leaves it open.

A100 = ("--machine", "4xA100-40GB")
MODEL = TEMPLATES / "model"


@pytest.fixture
def hf(folder: Path) -> Path:
    """The Trainer's template."""
    shutil.copy(TEMPLATES / "train_hf.py", folder / "train.py")
    shutil.copytree(TEMPLATES / "portable_checkpoint", folder / "portable_checkpoint")
    return folder


def dry(here: Run, *words: str) -> Result:
    return here("launch", "--dry-run", "--json", "--yes", *A100, *words)


def settled(result: Result) -> dict[str, list[str]]:
    return {each["setting"]: each["words"] for each in result.content["settled"]}


def script_words(result: Result) -> list[str]:
    command: list[str] = json.loads(result.stdout)["command"]
    return command[command.index("train.py") + 1 :]


NAMED = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import argparse
p = argparse.ArgumentParser()
p.add_argument("--base", default="gpt2")
args = p.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.base)
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=1)).train()
"""
LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.fixture
def named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script with an option for its model, and a hub that nobody asks."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (folder / "train.py").write_text(NAMED)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        ("llama-3.1-8b", (), ["--base", LLAMA]),
        (LLAMA, (), ["--base", LLAMA]),
        ("llama-3.1-8b", ("--base", LLAMA), ["--base", LLAMA]),
        ("openai-community/gpt2", (), []),
    ],
)
def test_a_well_known_name_reaches_the_script_as_what_the_hub_calls_it(
    here: Run, model: str, given: tuple[str, ...], words: list[str]
) -> None:
    result = dry(
        here, "--model", model, "--stage", "3", "--offload", "none", "--force", "train.py", *given
    ).good
    assert words == script_words(result)


@pytest.mark.usefixtures("named")
def test_a_well_known_name_contradicts_another_model(here: Run) -> None:
    result = dry(here, "--model", "llama-3.1-8b", "train.py", "--base", "gpt2")
    problem = (
        "`--model llama-3.1-8b` conflicts with the script: `--base gpt2` after the script says gpt2"
    )
    assert problem == result.problem
    assert f"put `--base {LLAMA}` after train.py" in result.hints


AUTO = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
ON_CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")


@pytest.mark.usefixtures("hf")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((), {}, id="a default of the parser is kept"),
        pytest.param(
            (
                *("--micro-batch", "2", "--grad-accum", "4", "--gradient-checkpointing"),
                *("--precision", "bf16"),
            ),
            {
                "micro_batch": ["--per_device_train_batch_size", "2"],
                "accumulation_steps": ["--gradient_accumulation_steps", "4"],
                "precision": ["--bf16", "True"],
                "gradient_checkpointing": ["--gradient_checkpointing", "True"],
            },
            id="options",
        ),
        pytest.param(
            ("--micro-batch", "4", "--global-batch", "64"),
            {"accumulation_steps": ["--gradient_accumulation_steps", "4"]},
            id="a global batch is delivered as micro-steps",
        ),
        pytest.param(
            ("--config", "own.json"),
            {
                "micro_batch": ["--per_device_train_batch_size", "2"],
                "accumulation_steps": ["--gradient_accumulation_steps", "4"],
                "precision": ["--bf16", "True"],
            },
            id="a config of one's own",
        ),
        pytest.param(ON_CPU, {"use_cpu": ["--use_cpu", "True"]}, id="the CPU accelerator"),
    ],
)
def test_what_is_said_reaches_the_script_as_its_own_words(
    here: Run, folder: Path, words: tuple[str, ...], expected: dict[str, list[str]]
) -> None:
    own = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
    }
    (folder / "own.json").write_text(json.dumps(own))
    machine = () if words == ON_CPU else A100
    job = ("launch", "--dry-run", "--json", "--yes", *machine, "--model", "10m", *words)
    result = here(*job, "train.py", "--max_steps", "3")
    assert expected == settled(result)
    given, *added = script_words(result)[1:]
    assert "3" == given
    assert [word for each in expected.values() for word in each] == added[: 2 * len(expected)]
    note = "note: zerowiz adds after the script: `"
    assert bool(expected) is (note in result.stderr)


IN_CODE = """\
from transformers import Trainer, TrainingArguments
args = TrainingArguments("out", per_device_train_batch_size=2)
Trainer(args=args)
"""
TWICE = (
    "`--micro-batch 4` conflicts with the script: `--per_device_train_batch_size 2` after the"
    " script says 2"
)


@pytest.mark.parametrize(
    ("script", "option", "given", "problem", "hint"),
    [
        pytest.param(
            HF_PARSER,
            ("--micro-batch", "4"),
            ("--per_device_train_batch_size", "2"),
            TWICE,
            "",
            id="said twice",
        ),
        pytest.param(
            IN_CODE,
            ("--micro-batch", "4"),
            (),
            "",
            "set `per_device_train_batch_size=4` in train.py line 2",
            id="fixed in the code",
        ),
        pytest.param(
            IN_CODE,
            ("--grad-accum", "4"),
            (),
            "",
            "set `gradient_accumulation_steps=4` in train.py line 2",
            id="left out in the code",
        ),
    ],
)
def test_what_the_script_says_otherwise_is_named_and_not_changed(
    here: Run,
    folder: Path,
    script: str,
    option: tuple[str, ...],
    given: tuple[str, ...],
    problem: str,
    hint: str,
) -> None:
    result = dry(here, "--model", "1b", *option, *written(folder, script), *given)
    assert 2 == result.code
    assert result.problem.startswith(problem)
    assert hint in result.hints


def test_a_model_that_can_be_loaded_reaches_the_script_and_a_size_does_not(
    here: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(
        "import argparse\n"
        "from accelerate import Accelerator\n"
        "from transformers import AutoModelForCausalLM\n"
        "parser = argparse.ArgumentParser()\n"
        'parser.add_argument("--model_name", default="gpt2")\n'
        "args = parser.parse_args()\n"
        "accelerator = Accelerator()\n"
        "model = AutoModelForCausalLM.from_pretrained(args.model_name)\n"
    )
    words = ("--micro-batch", "1", "train.py")
    assert {"model": ["--model_name", str(MODEL)]} == settled(
        dry(here, "--model", str(MODEL), *words)
    )
    by_size = dry(here, "--model", "1b", *words)
    assert {} == settled(by_size)
    size = "note: `--model 1b` is only a size; the script loads `gpt2`, the default of"
    assert size in by_size.stderr
    said = dry(here, "--model", "1b", *words, "--model_name", str(MODEL))
    assert 2 == said.code
    assert "remove `--model 1b`" in said.hints
    by_name = dry(here, "--model", "1b", *words, "--model_name", "org/on-a-hub")
    assert "`--model 1b` is only a size; the script loads `org/on-a-hub`" in by_name.stderr


def test_a_size_is_not_what_a_template_trains(here: Run, folder: Path) -> None:
    for name in ("model", "portable_checkpoint"):
        shutil.copytree(TEMPLATES / name, folder / name)
    shutil.copy(TEMPLATES / "train_hf.py", folder / "train.py")
    noted = "is only a size, and the script still loads its own model"
    assert f"`--model 1b` {noted}" in dry(here, "--model", "1b", "train.py").stderr
    assert noted not in dry(here, "--model", "model", "train.py").stderr


def test_a_size_says_how_large_a_model_in_the_code_is(here: Run, folder: Path) -> None:
    text = "from transformers import AutoModelForCausalLM, TrainingArguments\n"
    text += (
        "model = AutoModelForCausalLM.from_pretrained('org/on-a-hub')\nTrainingArguments('out')\n"
    )
    (folder / "train.py").write_text(text)
    result = dry(here, "--model", "10m", "train.py").good
    assert "the script loads `org/on-a-hub`" in result.stderr
    assert 2 == dry(here, "--model", str(MODEL), "train.py").code


@pytest.mark.usefixtures("hf")
def test_a_trainer_that_is_told_to_use_no_cpu_fails_the_preflight_there(here: Run) -> None:
    words = ("launch", "--dry-run", "--json", *ON_CPU, "--model", "10m", "train.py")
    assert 5 == here(*words, "--use_cpu", "False").code


def test_a_batch_that_ones_own_config_leaves_open_is_chosen(here: Run, hf: Path) -> None:
    """It is delivered as words; the config stays as it is, and the global batch too."""
    (hf / "own.json").write_text(json.dumps({**AUTO, "zero_optimization": {"stage": 2}}))
    words = ("--model", "1b", "--global-batch", "64", "--config", "own.json", "train.py")
    result = dry(here, *words)
    found = json.loads(result.stdout)
    step = found["workload"]
    assert 64 == 4 * step["micro_batch"] * step["accumulation_steps"]
    assert ["--per_device_train_batch_size", "16"] == settled(result)["micro_batch"]
    assert ("zero2", 16) == (found["choice"]["strategy"], found["choice"]["micro_batch"])


def test_plan_takes_a_script_and_its_words(here: Run, hf: Path) -> None:
    assert {path.name for path in hf.iterdir()} == {"train.py", "portable_checkpoint"}
    words = ("plan", "--json", *A100, "--model", "1b", "--micro-batch", "2", "train.py")
    result = here(*words, "--seq_len", "512")
    added = {
        "micro_batch": ["--per_device_train_batch_size", "2"],
        "accumulation_steps": ["--gradient_accumulation_steps", "2"],
    }
    assert added == settled(result)
    assert 512 == json.loads(result.stdout)["workload"]["sequence_tokens"]
    assert {path.name for path in hf.iterdir()} == {"train.py", "portable_checkpoint"}


def test_plan_decides_for_a_script_that_no_config_reaches(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text("import lightning\n")
    assert 0 == here("plan", *A100, "--model", "1b", "train.py").code


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (("--attention", "flash", "--packing"), "`--attention flash`, `--packing`"),
        (("--loss", "chunked"), "`--loss chunked`"),
        (("--attention", "sdpa"), None),
        ((), None),
    ],
)
def test_what_no_argument_can_pass_to_a_script_is_noted(
    here: Run, folder: Path, words: tuple[str, ...], noted: str | None
) -> None:
    (folder / "train.py").write_text(HF_IN_CODE)
    job = ("plan", "--machine", "2xA100-80GB-SXM", "--model", "1b", "--seq-len", "512")
    stderr = " ".join(here(*job, *words, "train.py").stderr.split())
    expected = f"note: zerowiz cannot pass {noted} to your script: the plan is right only if"
    assert (expected in stderr) is (noted is not None)
    assert noted is not None or "cannot pass" not in stderr


def test_adapters_of_a_model_that_is_built_elsewhere_are_up_to_the_script(
    here: Run, folder: Path
) -> None:
    text = HF_IN_CODE.replace("model=None", "model=model")
    (folder / "train.py").write_text(f"from mine import build\nmodel = build()\n{text}")
    job = ("plan", "--machine", "2xA100-80GB-SXM", "--model", "1b", "--seq-len", "512")
    stderr = here(*job, "--method", "lora", "train.py").stderr
    assert "zerowiz cannot pass `--method lora` to your script" in " ".join(stderr.split())
    assert "cannot pass" not in here(*job, "--method", "full", "train.py").stderr


def test_what_an_option_of_the_script_takes_is_passed_without_that_note(
    here: Run, folder: Path
) -> None:
    shutil.copy(TEMPLATES / "train_deepspeed.py", folder / "train.py")
    shutil.copytree(TEMPLATES / "portable_checkpoint", folder / "portable_checkpoint")
    job = ("launch", "--dry-run", "--accelerator", "cpu", "--model", "10m", "--seq-len", "64")
    result = here(*job, "--gradient-checkpointing", "train.py")
    assert "--gradient_checkpointing" in result.stdout
    assert "cannot pass" not in result.stderr
