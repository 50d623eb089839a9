"""What a script does with its config and its model, against what was planned."""

import json
import sys
from pathlib import Path

import pytest
from core.preflight.cases import (
    CPU,
    DUMMY,
    H200,
    LION_8BIT,
    floating,
    handing,
    lightning,
    loaded,
    preparing,
    saving,
    with_fsdp,
)
from ranks.harness import rank_environ, run_loaded

from zerowiz.core.findings import Rule
from zerowiz.core.preflight.examine import examine
from zerowiz.core.preflight.facts import PreflightInput
from zerowiz.core.preflight.script import (
    FLOAT_BATCHES,
    LIGHTNING_REFUSES,
    OPTIMIZERS_DROPPED,
    UNPREPARED,
)
from zerowiz.core.preflight.stages import SHARDS_SAVED
from zerowiz.core.script.facts import ValueSource
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.strategies import ZERO2, ZERO2_OFFLOAD, ZERO3, ZERO3_OFFLOAD
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration, Precision

UNKNOWN = ValueSource()
ONE_GPU = replace(H200, gpus=H200.gpus[:1])
TWO_NODES = replace(ONE_GPU, nodes=2)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # Stage 3: transformers refuses any map, once it knows of the config.
        (loaded("auto", CPU, ZERO3), ["error"]),
        (loaded("cuda", H200, ZERO3), ["error"]),
        (loaded(0, H200, ZERO3), ["error"]),
        (loaded(None, H200, ZERO3, is_map=True), ["error"]),
        (loaded("cuda", H200, ZERO3, Integration.ACCELERATE), ["error"]),
        (loaded("cuda", H200, ZERO3, engine_is_known=False), []),
        (loaded("cuda", H200, ZERO3, Integration.DEEPSPEED), []),
        (loaded("", H200, ZERO3), []),
        (loaded(None, H200, ZERO3), []),
        # Below it the map matters where a rank sees several GPUs.
        (loaded("auto"), ["error"]),
        (loaded("balanced", integration=Integration.ACCELERATE), ["error"]),
        (loaded("auto", H200, ZERO3, engine_is_known=False), ["error"]),
        (loaded("auto", integration=Integration.DEEPSPEED), ["warning"]),
        (loaded("auto", ONE_GPU), []),
        (loaded("auto", TWO_NODES), []),
        (loaded("auto", CPU), []),
        (loaded("sequential"), []),
        (loaded(0), ["warning"]),
        (loaded("cuda:0"), ["warning"]),
        (loaded(0, ONE_GPU), []),
        (loaded(None, is_map=True), []),
        # A condition that does not hold, or that cannot be followed.
        (loaded("auto", conditions=(UNKNOWN,)), []),
        (loaded("auto", conditions=(ValueSource(value=False),)), []),
        (loaded("auto", conditions=(ValueSource(value=True),)), ["error"]),
    ],
)
def test_a_device_map_ends_a_job_where_its_libraries_refuse_it(
    found: PreflightInput, expected: list[str]
) -> None:
    names = [each.rule.name for each in examine(found)]
    assert expected == [
        each.severity.value for each in examine(found) if each.rule.name == "device-map"
    ]
    assert {*names} <= {"device-map", "busy-gpu", "small-shm", "host-memory"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (with_fsdp("full_shard auto_wrap"), ["fsdp"]),
        (with_fsdp(value=True), ["fsdp"]),
        (with_fsdp("False"), []),
        (with_fsdp(None), []),
        (with_fsdp("full_shard", Integration.DEEPSPEED), []),
    ],
)
def test_fsdp_beside_deepspeed_ends_a_trainer(found: PreflightInput, expected: list[str]) -> None:
    assert expected == [each.rule.name for each in examine(found)]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        *((saving(ZERO3, each), ["error"]) for each in Integration),
        (saving(ZERO3_OFFLOAD), ["error"]),
        (saving(ZERO3, Integration.HF, UNKNOWN), ["warning"]),
        (saving(ZERO3, Integration.HF, ValueSource(value=False)), []),
        (saving(ZERO2), []),
        (saving(ZERO2, escalates=True), ["warning"]),
        # Adapters of up to 10 x 4096 elements stay whole on each rank; 4096 x 11008 has more.
        (saving(ZERO3, rank=1), []),
        (saving(ZERO3, rank=64), ["error"]),
        (saving(ZERO3, adapters_only=False, rank=1), ["error"]),
    ],
)
def test_a_model_that_the_script_saves_by_itself_is_empty_where_it_is_sharded(
    job: PreflightInput, expected: list[str]
) -> None:
    assert expected == [each.severity.value for each in examine(job) if each.rule is SHARDS_SAVED]


def test_a_save_is_a_warning_where_adapters_may_be_all_that_it_writes() -> None:
    job = saving(ZERO3)
    assert job.planned is not None
    assert job.planned.script is not None
    facts = replace(job.planned.script.facts, trains_adapters=True)
    doubtful = replace(job, planned=replace(job.planned, script=ScriptRun(facts)))
    assert ["warning"] == [each.severity.value for each in examine(doubtful)]


@pytest.mark.parametrize(
    ("job", "fix"),
    [
        (handing(), "override `create_optimizer`"),
        (handing(config={"optimizer": {"type": "AdamW"}}), "`optimizer` and `scheduler` sections"),
        (handing(Integration.HF, UNKNOWN), "override"),
        (handing(Integration.HF, ValueSource(value=False)), None),
        (handing(Integration.ACCELERATE), None),
    ],
)
def test_an_optimizer_that_a_trainer_is_handed_has_no_effect(
    job: PreflightInput, fix: str | None
) -> None:
    seen = [each for each in examine(job) if each.rule is OPTIMIZERS_DROPPED]
    assert [each.severity.value for each in seen] == ([] if fix is None else ["warning"])
    assert all(fix in each.fixes[0] for each in seen if fix)


def test_floats_are_found_where_weights_of_16_bits_would_refuse_them() -> None:
    def found(job: PreflightInput, config: dict[str, object] | None = None) -> bool:
        assert job.planned is not None
        planned = replace(job.planned, config=config)
        return any(each.rule is FLOAT_BATCHES for each in examine(replace(job, planned=planned)))

    assert found(floating(Precision.FP16))
    assert not found(floating(Precision.FP16), {"fp16": {"enabled": True, "auto_cast": True}})
    assert not found(floating(sees=False))


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (lightning(devices=4), []),
        (lightning(devices=-1), []),
        (lightning(devices=2), ["says 2, but each node has 4 ranks"]),
        (lightning(strategy="deepspeed_stage_2"), []),
        (lightning(strategy="auto"), ["says auto: Lightning would train without DeepSpeed"]),
        (lightning(gradient_accumulation_steps=4), ["which Lightning refuses"]),
        (lightning(CPU, devices="auto"), ["on CUDA GPUs only, not on cpu"]),
    ],
)
def test_what_lightning_refuses_is_found(job: PreflightInput, said: list[str]) -> None:
    found = [each for each in examine(job) if each.rule is LIGHTNING_REFUSES]
    assert len(said) == len(found)
    assert all(words in each.message for words, each in zip(said, found, strict=True))


KNOWN = ValueSource(value="AdamW", line=7, code="torch.optim.AdamW(...)")
SECTION = {"type": "AdamW"}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (preparing(DUMMY), [UNPREPARED]),
        (preparing(DUMMY, optimizer=SECTION), []),
        (preparing(KNOWN, optimizer=SECTION), [UNPREPARED]),
        (preparing(UNKNOWN, optimizer=SECTION), []),
        (preparing(KNOWN), []),
        # Under offload, of what is not known to be an Adam.
        (preparing(KNOWN, ZERO2_OFFLOAD), []),
        (preparing(LION_8BIT, ZERO2_OFFLOAD), [OPTIMIZERS_DROPPED]),
        (preparing(LION_8BIT, ZERO2_OFFLOAD, zero_force_ds_cpu_optimizer=False), []),
        (preparing(LION_8BIT), []),
        (lightning(optimizer=SECTION), [OPTIMIZERS_DROPPED]),
        (lightning(), []),
    ],
)
def test_an_optimizer_that_would_not_step_is_found(
    job: PreflightInput, expected: list[Rule]
) -> None:
    wanted = {UNPREPARED, OPTIMIZERS_DROPPED}
    assert expected == [each.rule for each in examine(job) if each.rule in wanted]


# What DeepSpeed's ranks really have of a model at stage 3, when a script saves it by itself.

THRESHOLD = 100
LOOP = f"""import json, sys
import deepspeed, torch

model = torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 11, bias=False))
config = {{
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "torch_adam": True}}}},
    "zero_optimization": {{"stage": 3, "stage3_param_persistence_threshold": {THRESHOLD},
        "stage3_gather_16bit_weights_on_model_save": True}},
}}
engine, *_ = deepspeed.initialize(model=model, config=config)
for _ in range(2):
    engine.backward(engine(torch.ones(1, 10)).sum())
    engine.step()
sizes = lambda: [tensor.numel() for tensor in model.state_dict().values()]
itself = sizes()
with deepspeed.zero.GatheredParameters(model.parameters()):
    gathered = sizes()
engine.save_16bit_model(sys.argv[1], "all.bin")
if torch.distributed.get_rank() == 0:
    saved = torch.load(f"{{sys.argv[1]}}/all.bin")
    found = itself, gathered, [tensor.numel() for tensor in saved.values()]
    with open(f"{{sys.argv[1]}}/found.json", "w") as file:
        json.dump(found, file)
"""


@pytest.mark.deepspeed
@pytest.mark.slow
def test_a_rank_has_no_weight_of_its_model_that_is_above_the_threshold(folder: Path) -> None:
    (folder / "loop.py").write_text(LOOP, encoding="utf-8")
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = run_loaded((*launcher, "loop.py", folder), rank_environ(folder / "reports"), folder)
    assert 0 == done.returncode, done.stderr
    itself, gathered, saved = json.loads((folder / "found.json").read_text())
    assert ([THRESHOLD, 0], [100, 110], [100, 110]) == (itself, gathered, saved)
