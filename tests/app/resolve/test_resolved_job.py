"""What of a step nobody decided, and what the global batch is that a choice keeps."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.harness import Run
from hub import Answer, serving
from paths import MODELS, TEMPLATES
from probe.reading import RAW_HEAD, RAW_TAIL, facts_of

from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.app.resolve.resolved_job import ResolvedJob, resolve_job
from zerowiz.core.decision.job import OpenSettings
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.structs import replace
from zerowiz.core.workload import Accounting, Trainer
from zerowiz.errors import UsageError
from zerowiz.probe.script.read_script import parse_script, read_script

LOADER = "loader = DataLoader(data, batch_size=args.batch)\n"
COUNTS = "steps = engine.gradient_accumulation_steps()\n"
TRAINER = read_script(TEMPLATES / "train_hf.py")
# The Trainer's defaults, which no word can change: 8 x 1.
FIXED = parse_script(
    "from transformers import Trainer, TrainingArguments\n"
    'args = TrainingArguments(output_dir="out", deepspeed="ds.json")\n'
    "Trainer(model=model, args=args).train()\n",
    "train.py",
)
PLAIN = read_script(TEMPLATES / "train_deepspeed.py")


def requested(facts: ScriptFacts | None, *words: str, **said: object) -> ResolvedJob:
    options = Options(model="1b", machine="4xA100-40GB", **said)  # type: ignore[arg-type]
    script = None if facts is None else ScriptRun(facts, words)
    return resolve_job(options, find_machine(options, {}), script)


def raw(*lines: str) -> ScriptFacts:
    return parse_script(RAW_HEAD + "".join(lines) + RAW_TAIL, "train.py")


def batch(resolved: ResolvedJob) -> tuple[int, int]:
    return resolved.job.workload.micro_batch, resolved.job.workload.accumulation_steps


@pytest.mark.parametrize(
    ("facts", "words", "expected"),
    [
        (facts_of("hf_parser"), (), (8, 1)),
        (facts_of("hf_parser"), ("--gradient_accumulation_steps", "4"), (8, 4)),
        (TRAINER, (), (4, 1)),
        (PLAIN, (), (1, 1)),
        (facts_of("accelerate_bare"), (), (8, 1)),
        (raw(LOADER), (), (4, 1)),
        (None, (), (1, 1)),
    ],
)
def test_by_itself_a_job_has_the_batch_that_its_script_would_run(
    facts: ScriptFacts | None, words: tuple[str, ...], expected: tuple[int, int]
) -> None:
    assert expected == batch(requested(facts, *words))


# They do not look at what else is in a micro-batch.
ALIKE = {Trainer.SFT, Trainer.DPO, Trainer.REWARD}


@pytest.mark.parametrize(
    ("facts", "words", "said", "expected"),
    [
        (facts_of("hf_parser"), (), {}, True),
        (facts_of("hf_in_code"), (), {}, False),
        (TRAINER, (), {}, True),
        (PLAIN, (), {}, True),
        (facts_of("accelerate_bare"), (), {}, True),
        # Its Accelerator is told of no accumulation, and its loop may not know of any.
        (facts_of("lora_accelerate"), (), {}, False),
        # A loop that does not know of micro-steps counts them as steps of the optimizer.
        (raw(LOADER), (), {}, False),
        (raw(LOADER, COUNTS), (), {}, True),
        # What is in a micro-batch is compared with each other, or generated together.
        (facts_of("trl_dpo_parser"), (), {}, True),
        (facts_of("trl_kto_optional_reference"), (), {}, False),
        (facts_of("trl_grpo_parser"), (), {}, False),
        (facts_of("trl_own_loss"), (), {}, False),
        # What a word or an option says is decided; a global batch alone leaves its split open.
        (facts_of("hf_parser"), ("--per_device_train_batch_size", "8"), {}, False),
        (facts_of("hf_parser"), ("--gradient_accumulation_steps", "2"), {}, False),
        (facts_of("hf_parser"), (), {"micro_batch": 4}, False),
        (facts_of("hf_parser"), (), {"accumulation_steps": 2}, False),
        (None, (), {"global_batch": 32, "micro_batch": 4}, False),
        (None, (), {"global_batch": 32, "accumulation_steps": 2}, False),
        *(
            (None, (), {"global_batch": 32, "trainer": trainer}, trainer in ALIKE)
            for trainer in Trainer
        ),
    ],
)
def test_a_batch_may_be_split_where_the_script_learns_the_same(
    facts: ScriptFacts | None,
    words: tuple[str, ...],
    said: dict[str, object],
    *,
    expected: bool,
) -> None:
    assert expected is requested(facts, *words, **said).freedom.split


AUTO = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")


@pytest.mark.parametrize(
    ("facts", "batch_of_config", "expected"),
    [
        (facts_of("hf_parser"), AUTO, True),
        (facts_of("hf_parser"), {}, True),
        (facts_of("hf_parser"), {**AUTO, "train_micro_batch_size_per_gpu": 4}, False),
        (facts_of("hf_parser"), {**AUTO, "train_batch_size": 32}, False),
        # No word of it says its batch, and a person's own config is run as it stands.
        (facts_of("hf_in_code"), {**AUTO, "fp16": {"enabled": True}}, False),
        (raw(LOADER, COUNTS), AUTO, False),
        (None, AUTO, False),
    ],
)
def test_a_batch_that_ones_own_config_leaves_open_is_as_open_as_the_script_has_it(
    tmp_path: Path,
    facts: ScriptFacts | None,
    batch_of_config: dict[str, object],
    *,
    expected: bool,
) -> None:
    config = tmp_path / "own.json"
    config.write_text(json.dumps({**batch_of_config, "zero_optimization": {"stage": 2}}))
    freedom = requested(facts, config=config).freedom
    assert OpenSettings(split=expected) == freedom


def test_a_global_batch_leaves_its_split_open() -> None:
    resolved = requested(None, global_batch=32)
    assert (1, 8) == batch(resolved)
    assert OpenSettings(split=True, checkpointing=(True,)) == resolved.freedom


def test_without_a_script_and_a_batch_nobody_says_what_would_run() -> None:
    resolved = requested(None)
    assert ((1, 1), OpenSettings()) == (batch(resolved), resolved.freedom)


def test_a_global_batch_that_the_default_does_not_divide_is_kept_exactly() -> None:
    resolved = requested(facts_of("hf_parser"), global_batch=24)
    assert (6, 1) == batch(resolved)
    words = [word for each in resolved.settled for word in each.words]
    assert ["--per_device_train_batch_size", "6"] == words
    with pytest.raises(UsageError):
        requested(facts_of("hf_parser"), global_batch=24, micro_batch=4)
    with pytest.raises(UsageError):
        requested(facts_of("hf_parser"), global_batch=26)


@pytest.mark.parametrize(
    ("facts", "words", "said", "expected"),
    [
        (TRAINER, ("--gradient_accumulation_steps", "3"), {"global_batch": 180}, (15, 3)),
        (TRAINER, (), {"global_batch": 180, "accumulation_steps": 3}, (15, 3)),
        (None, (), {"global_batch": 180, "accumulation_steps": 3}, (15, 3)),
        # A loop that does not know of micro-steps, of which a global batch says that there are.
        (raw(LOADER), (), {"global_batch": 120}, (3, 10)),
    ],
)
def test_a_global_batch_is_solved_for_an_open_micro_batch(
    facts: ScriptFacts | None, words: tuple[str, ...], said: dict[str, int], expected: object
) -> None:
    resolved = requested(facts, *words, **said)
    assert expected == batch(resolved)
    added = {each.name: each.value for each in resolved.settled}
    assert facts is None or expected == (added["micro_batch"], expected[1])


@pytest.mark.parametrize(
    ("facts", "said", "hints"),
    [
        (TRAINER, {"global_batch": 102}, ("use one of the nearest multiples: 100 or 104",)),
        (
            TRAINER,
            {"global_batch": 102, "accumulation_steps": 3},
            ("use one of the nearest multiples: 96 or 108",),
        ),
        (
            TRAINER,
            {"global_batch": 180, "accumulation_steps": 3, "micro_batch": 4},
            ("use `$micro_batch 15`", "or remove `$global_batch 180`"),
        ),
        (FIXED, {"global_batch": 120}, ("remove `$global_batch 120`",)),
    ],
)
def test_what_is_offered_for_a_global_batch_works(
    facts: ScriptFacts, said: dict[str, int], hints: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        requested(facts, **said)
    assert hints == caught.value.hints


def test_a_model_takes_no_longer_a_sequence_than_its_learned_positions() -> None:
    options = Options(model=str(MODELS / "gpt2-medium"), machine="4xA100-40GB")
    resolved = resolve_job(options, find_machine(options, {}), None)
    assert 1024 == resolved.job.workload.sequence_tokens
    assert (
        "1024 tokens per sequence, its learned positions (`$sequence_tokens`)" in resolved.assumed
    )
    # Completions have a default of their own.
    assert not any("learned" in each for each in requested(None, trainer=Trainer.GRPO).assumed)
    longer = replace(options, sequence_tokens=1025)
    with pytest.raises(UsageError, match="learned positions"):
        resolve_job(longer, find_machine(longer, {}), None)


@pytest.mark.parametrize(
    ("facts", "words", "said", "expected"),
    [
        (TRAINER, (), {}, (True,)),
        (TRAINER, ("--gradient_checkpointing", "True"), {}, ()),
        (TRAINER, (), {"gradient_checkpointing": False}, ()),
        (PLAIN, (), {}, (True,)),
        # A flag that is there cannot be taken back, and none switches it off.
        (PLAIN, ("--gradient_checkpointing",), {}, ()),
        (facts_of("hf_in_code"), (), {}, ()),
        # Switched on by a line of the code.
        (facts_of("raw_positional"), (), {}, ()),
        # trl's own default is on; an option switches it off.
        (facts_of("trl_dpo_parser"), (), {}, (False,)),
        # What enters a frozen base asks for no gradients unless somebody sees to it.
        (facts_of("lora_dataclasses"), (), {}, ()),
    ],
)
def test_checkpointing_is_open_where_a_word_can_change_it(
    facts: ScriptFacts, words: tuple[str, ...], said: dict[str, object], expected: tuple[bool, ...]
) -> None:
    assert expected == requested(facts, *words, **said).freedom.checkpointing


def test_the_rule_of_thumb_knows_no_step() -> None:
    resolved = requested(facts_of("hf_parser"), accounting=Accounting.TEXTBOOK)
    assert OpenSettings() == resolved.freedom


# What is read from outside is read once, however many remedies are weighed.

CONFIG = (MODELS / "llama-2-7b" / "config.json").read_text()


def test_a_model_of_the_hub_is_fetched_once_for_all_remedies(
    here: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/some/model/resolve/main/config.json"
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HOME", str(folder / "hub"))
    with serving() as hub:
        hub.answers[path] = Answer(body=CONFIG)
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        result = here("plan", "--machine", "4xA100-40GB", "--model", "some/model")
    assert 4 == result.code
    assert result.stderr.count("hint: ") > 3
    assert [path] == [asked for asked, _ in hub.asked]


# What a script does with the memory of its nodes is planned with.

BUILDS = 'model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"))\n'
MAPS = 'model = AutoModelForCausalLM.from_pretrained("model")\n'
ON_DEVICE = f"with torch.device(local_rank):\n    {BUILDS}"
HOST_USE_TRAINER = """\
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
{model}args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True{more})
Trainer(model=model, args=args).train()
"""
ENGINE = """\
import deepspeed, torch
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM
{model}engine, *_ = deepspeed.initialize(model=model, config="ds_config.json")
loader = DataLoader(data, batch_size=1{more})
test_loader = DataLoader(data, batch_size=1, num_workers=99)
for batch in loader:
    engine.backward(engine(**batch).loss)
    engine.step()
engine.save_checkpoint("out")
"""
MACHINE = ("--machine", "p4d.24xlarge", "--model", "7b", "--stage", "2", "--seq-len", "128")
WEIGHTS_BYTES = 8 * 2 * 7_000_000_000


def hosted(here: Run, folder: Path, text: str) -> dict[str, dict[str, int]]:
    """Bytes of each part, by phase."""
    (folder / "own.py").write_text(text)
    result = here("plan", "--json", *MACHINE, "own.py")
    strategies: list[dict[str, Any]] = json.loads(result.stdout)["strategies"]
    host = next(each["host"] for each in strategies if each["name"] == "zero2")
    parts: dict[str, dict[str, int]] = {phase: {} for phase in host["phases"]}
    for line in host["lines"]:
        parts[line["phase"]][line["part"]] = line["bytes"]
    return parts


@pytest.mark.parametrize(("model", "is_built"), [(BUILDS, True), (MAPS, False), (ON_DEVICE, False)])
@pytest.mark.parametrize("script", [HOST_USE_TRAINER, ENGINE], ids=["trainer", "engine"])
def test_a_model_that_a_script_makes_in_host_memory_is_counted_there(
    here: Run, folder: Path, script: str, model: str, is_built: bool
) -> None:
    parts = hosted(here, folder, script.format(model=model, more=""))
    expected = pytest.approx(WEIGHTS_BYTES, rel=0.05) if is_built else None
    assert expected == parts["load"].get("model as it is built")


@pytest.mark.parametrize(
    ("script", "more", "workers"),
    [
        (HOST_USE_TRAINER, "", 0),
        (HOST_USE_TRAINER, ", dataloader_num_workers=6", 6),
        (ENGINE, "", 0),
        (ENGINE, ", num_workers=3", 3),
    ],
)
def test_the_workers_of_the_training_loader_are_counted(
    here: Run, folder: Path, script: str, more: str, workers: int
) -> None:
    parts = hosted(here, folder, script.format(model=MAPS, more=more))
    expected = 8 * workers * 13_000_000 or None
    assert expected == parts["training"].get("data loader workers")


def test_a_trainer_collects_its_weights_and_an_engine_writes_them_by_storages(
    here: Run, folder: Path
) -> None:
    trainer, engine = (
        hosted(here, folder, script.format(model=MAPS, more=""))["saving"]
        for script in (HOST_USE_TRAINER, ENGINE)
    )
    assert trainer["weights collected to be saved"] == pytest.approx(WEIGHTS_BYTES, rel=0.05)
    assert "weights collected to be saved" not in engine
    assert engine["largest storage that is written"] == pytest.approx(4 * 7e9, rel=0.05)


OF_HOST = {
    "unknown": (
        (),
        (
            "Host 28.5 GiB on each node, most of it while a checkpoint is saved",
            "set it with `--host-memory`",
        ),
    ),
    "too small to save": (
        ("--host-memory", "20GiB"),
        ("20.0 GiB is available, so the kernel may kill the job then",),
    ),
    # 28.5 GiB are predicted; predictions of the host were off by up to 6 %.
    "nearly full": (
        ("--host-memory", "30GiB"),
        ("30.0 GiB is available, only 1.5 GiB more: it just fits if no other program",),
    ),
    "roomy": (("--host-memory", "31GiB"), ("31.0 GiB is available",)),
}


@pytest.mark.parametrize(("words", "says"), OF_HOST.values(), ids=OF_HOST)
def test_a_plan_says_when_most_of_the_host_is_held_and_how_much_there_is(
    here: Run, words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    job = ("plan", "--verbose", "--machine", "8xA100-40GB", "--model", "1b", "--stage", "0")
    said = " ".join(here(*job, *words).stdout.split())
    assert [] == [each for each in says if each not in said]
    assert ("GiB is available, only" in said) is (words[-1:] == ("30GiB",))


def test_a_host_that_is_too_small_to_start_on_is_named_with_what_it_lacks(here: Run) -> None:
    words = ("--machine", "8xA100-40GB", "--model", "7b", "--stage", "3", "--seq-len", "128")
    result = here("plan", *words, "--host-memory", "16GiB")
    assert 4 == result.code
    assert "lacks 6.4 GiB of host memory while DeepSpeed starts" in " ".join(result.problem.split())
