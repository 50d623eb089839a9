"""Let the ranks of a DeepSpeed job report what their engines really are, or run out of memory.

Python imports a module of this name at start-up when its folder is on PYTHONPATH. With
ZEROWIZ_RANK_REPORT naming a folder, each rank writes `rankN.json` there after its first optimizer
step. With ZEROWIZ_RANK_RUNS_OUT, `RANK,STEP,STAGE`, that rank dies in that step of that stage. The launcher's own processes, which have no RANK, are left alone.
"""

import json
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ENGINE_MODULE = "deepspeed.runtime.engine"


class EngineFinder(MetaPathFinder):
    """Find the engine's module where Python would, and watch its class once it is loaded."""

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        """Step in for one module only."""
        if fullname != ENGINE_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            watch_after_load(spec.loader)
        return spec


def watch_after_load(loader: Loader) -> None:
    """Have this one loader hand over the class as soon as the module is complete."""
    load = loader.exec_module

    def exec_module(module: Any) -> None:
        load(module)
        if "ZEROWIZ_RANK_REPORT" in os.environ:
            watch(module.DeepSpeedEngine)
        if "ZEROWIZ_RANK_RUNS_OUT" in os.environ:
            run_out(module.DeepSpeedEngine)

    loader.exec_module = exec_module  # type: ignore[method-assign]


def watch(engine_class: Any) -> None:
    """Write one report after the first call of `step` that updated the weights."""
    step = engine_class.step
    reported: list[Any] = []

    def observed_step(engine: Any, *args: Any, **kwargs: Any) -> Any:
        result = step(engine, *args, **kwargs)
        if engine.global_steps > 0 and not reported:
            reported.append(engine)
            write_report(describe(engine))
        return result

    engine_class.step = observed_step


def run_out(engine_class: Any) -> None:
    """Have one rank die for want of memory in one step, while the others wait for it."""
    import torch

    rank, at_step, stage = os.environ["ZEROWIZ_RANK_RUNS_OUT"].split(",")
    step = engine_class.step

    def failing_step(engine: Any, *args: Any, **kwargs: Any) -> Any:
        here = (engine.global_rank, engine.global_steps + 1, engine.zero_optimization_stage())
        if here == (int(rank), int(at_step), int(stage)):
            # More than any host has: the allocator itself refuses.
            torch.empty(1 << 62, dtype=torch.uint8)
        return step(engine, *args, **kwargs)

    engine_class.step = failing_step


def describe(engine: Any) -> dict[str, Any]:
    """What this rank's engine, its parameters and its optimizer are, as found in memory."""
    zero = engine._config.zero_config
    parameters = list(engine.module.parameters())
    basic = engine.basic_optimizer
    states = [
        value
        for per_parameter in basic.state.values()
        for value in per_parameter.values()
        if getattr(value, "ndim", 0) > 0
    ]
    # Stage 3 lends its master copy to the basic optimizer for the length of a step only.
    masters = [parameter for group in basic.param_groups for parameter in group["params"]]
    masters = masters or engine.optimizer.fp32_partitioned_groups_flat
    return {
        "rank": engine.global_rank,
        "world_size": engine.world_size,
        "stage": engine.zero_optimization_stage(),
        "bf16_enabled": engine.bfloat16_enabled(),
        "fp16_enabled": engine.fp16_enabled(),
        "train_batch_size": engine.train_batch_size(),
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "accumulation_steps": engine.gradient_accumulation_steps(),
        # transformers 5.23, modeling_layers.py, GradientCheckpointingLayer.
        "gradient_checkpointing": any(
            getattr(module, "gradient_checkpointing", False) for module in engine.module.modules()
        ),
        "offload_optimizer": offload_device(zero.offload_optimizer),
        "offload_param": offload_device(zero.offload_param),
        "optimizer_classes": optimizer_classes(engine.optimizer),
        "parameter_dtypes": dtypes(parameters),
        "master_dtypes": dtypes(masters),
        "state_dtypes": dtypes(states),
        "parameters": sum(getattr(p, "ds_numel", p.numel()) for p in parameters),
        "resident_parameters": sum(p.numel() for p in parameters),
        "state_elements": sum(state.numel() for state in states),
    }


def offload_device(section: Any) -> str | None:
    """Where a state is offloaded to: `cpu`; None when it stays."""
    device = getattr(section, "device", None)
    return getattr(device, "value", device)


def optimizer_classes(optimizer: Any) -> list[str]:
    """The optimizer's class and those that it wraps, the outermost first."""
    names = []
    while optimizer is not None:
        names.append(type(optimizer).__name__)
        optimizer = getattr(optimizer, "optimizer", None)
    return names


def dtypes(tensors: list[Any]) -> list[str]:
    """The number formats found, in order: `bfloat16`, `float32`."""
    return sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})


def write_report(report: dict[str, Any]) -> None:
    """Put the report in place whole."""
    path = Path(os.environ["ZEROWIZ_RANK_REPORT"]) / f"rank{report['rank']}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=2) + "\n")
    partial.replace(path)


ASKED = {"ZEROWIZ_RANK_REPORT", "ZEROWIZ_RANK_RUNS_OUT"} & os.environ.keys()
if ASKED and "RANK" in os.environ:
    sys.meta_path.insert(0, EngineFinder())
