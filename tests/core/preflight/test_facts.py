"""Which ops a config makes DeepSpeed compile, held against what it really loads."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from zerowiz.core.machine.types import Accelerator
from zerowiz.core.preflight.facts import list_ops
from zerowiz.core.workload import Integration

OFFLOAD = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
NVME = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}
ADAMW: Mapping[str, object] = {"type": "AdamW", "params": {"lr": 1e-3}}
TORCH_ADAM: Mapping[str, object] = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}


def names(
    config: Mapping[str, object],
    integration: Integration | None = Integration.DEEPSPEED,
    on: Accelerator = Accelerator.CUDA,
    own_optimizers: tuple[str, ...] = (),
    *,
    passes_optimizer: bool = False,
) -> list[str]:
    """Those that are only likely have a `?`."""
    ops = list_ops(
        config,
        accelerator=on,
        integration=integration,
        own_optimizers=own_optimizers,
        passes_optimizer=passes_optimizer,
    )
    return [f"{op.name}?" if op.likely else op.name for op in ops]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, []),
        ({"optimizer": ADAMW}, ["fused_adam"]),
        ({"optimizer": TORCH_ADAM}, []),
        ({"optimizer": ADAMW, "zero_optimization": OFFLOAD}, ["cpu_adam"]),
        ({"optimizer": {"type": "Lion"}, "zero_optimization": OFFLOAD}, ["cpu_lion"]),
        ({"optimizer": {"type": "lion"}}, ["fused_lion"]),
        ({"optimizer": {"type": "SGD"}, "zero_optimization": OFFLOAD}, []),
        ({"optimizer": {"type": "Adagrad"}}, []),
        ({"optimizer": "odd", "zero_optimization": True}, []),
        (
            {"optimizer": TORCH_ADAM, "zero_optimization": NVME},
            ["pin_memory", "async_io"],
        ),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, ["quantizer"]),
    ],
)
def test_the_config_names_what_is_compiled(
    config: Mapping[str, object], expected: list[str]
) -> None:
    assert expected == names(config)


def test_a_loop_that_hands_over_its_optimizer_compiles_no_other() -> None:
    assert [] == names({"optimizer": ADAMW}, passes_optimizer=True)


@pytest.mark.parametrize(
    ("zero", "own", "expected"),
    [
        ({}, ("FusedAdam",), ["fused_adam"]),
        ({}, ("DeepSpeedCPUAdam",), ["cpu_adam"]),
        ({}, ("AdamW",), []),
        ({}, (), []),
        ({}, ("AdamW", "DeepSpeedCPUAdam"), []),
        ({}, ("FusedAdam", "DeepSpeedCPUAdam"), ["fused_adam?"]),
        (OFFLOAD, ("AdamW", "DeepSpeedCPUAdam"), ["cpu_adam?"]),
        (OFFLOAD, ("FusedAdam", "DeepSpeedCPUAdam"), ["cpu_adam?"]),
        (OFFLOAD, ("DeepSpeedCPULion", "DeepSpeedCPUAdam"), ["cpu_lion?", "cpu_adam?"]),
        (OFFLOAD, ("FusedAdam",), ["fused_adam"]),
    ],
)
def test_the_scripts_own_optimizer_compiles_itself(
    zero: Mapping[str, object], own: tuple[str, ...], expected: list[str]
) -> None:
    assert expected == names({"zero_optimization": zero}, None, Accelerator.CUDA, own)


@pytest.mark.parametrize("integration", [Integration.HF, Integration.ACCELERATE])
def test_trainer_and_accelerate_swap_the_optimizer_under_offload(integration: Integration) -> None:
    assert ["cpu_adam"] == names({"zero_optimization": OFFLOAD}, integration)
    kept = {"zero_optimization": OFFLOAD, "zero_force_ds_cpu_optimizer": False}
    assert [] == names(kept, integration)
    several = names(
        {"zero_optimization": OFFLOAD}, integration, own_optimizers=("AdamW", "DeepSpeedCPUAdam")
    )
    assert ["cpu_adam"] == several
    assert [] == names({"zero_optimization": OFFLOAD})


def test_ranks_on_the_cpu_always_compile_what_they_exchange_with() -> None:
    assert ["deepspeed_shm_comm"] == names({}, on=Accelerator.CPU)


# Each engine in a process of one rank; what was loaded for the one before is forgotten.
ASK = """\
import json, os, sys
import deepspeed, torch
from deepspeed.ops.op_builder.builder import OpBuilder

deepspeed.init_distributed()
for config in json.loads(sys.argv[1]):
    model = torch.nn.Linear(8, 8)
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, **config}
    deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    print("LOADED", json.dumps(sorted(OpBuilder._loaded_ops)), flush=True)
    shared = OpBuilder._loaded_ops.get("deepspeed_shm_comm")
    OpBuilder._loaded_ops.clear()
    OpBuilder._loaded_ops["deepspeed_shm_comm"] = shared
os._exit(0)
"""


@pytest.mark.deepspeed
@pytest.mark.thorough
def test_deepspeed_loads_what_is_listed(tmp_path: Path) -> None:
    configs: list[Mapping[str, object]] = [
        {"optimizer": ADAMW, "zero_optimization": {"stage": 1}},
        {"optimizer": TORCH_ADAM, "zero_optimization": {"stage": 2}},
        {"optimizer": ADAMW, "zero_optimization": OFFLOAD},
        {"optimizer": {"type": "Lion", "params": {"lr": 1e-3}}, "zero_optimization": OFFLOAD},
        {"optimizer": TORCH_ADAM, "zero_optimization": {"stage": 3}},
    ]
    (tmp_path / "ask.py").write_text(ASK)
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environ = {**os.environ, **alone, "MASTER_PORT": "0", "DS_ACCELERATOR": "cpu"}

    done = subprocess.run(
        [sys.executable, "ask.py", json.dumps(configs)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    lines = [line for line in done.stdout.splitlines() if line.startswith("LOADED ")]
    loaded = [json.loads(line.removeprefix("LOADED ")) for line in lines]
    listed = [sorted(names(config, on=Accelerator.CPU)) for config in configs]
    assert listed == loaded, done.stderr
