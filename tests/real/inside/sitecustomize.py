"""Say from inside each rank what DeepSpeed really trains; put on PYTHONPATH by run.py alone.

Python imports a module of this name at every start. The scripts that are watched stay as they are.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

ENGINE = "deepspeed.runtime.engine"
TYPES = "accelerate.utils.dataclasses"
FOLDER = os.environ.get("REAL_SCRIPTS_SEEN")
OLD = "REAL_SCRIPTS_OLD_LIBRARIES" in os.environ


class Finder(importlib.abc.MetaPathFinder):
    """Finds a module as the others do, and changes it once it has run.

    Args:
        module: Its name.
        change: What is done with it.
    """

    def __init__(self, module: str, change: Callable[[Any], None]) -> None:
        self.module = module
        self.change = change

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        """The spec with a loader that changes, of this module alone."""
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            self.change(module)

        spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


def add_old_name(types: Any) -> None:
    """Give back a name that accelerate dropped in 1.0, and that public scripts still compare with."""
    types.DistributedType.TPU = types.DistributedType.XLA


def add_old_argument(trainer: Any) -> None:
    """Give back an argument and its attribute, which transformers dropped in 5.0."""
    init = trainer.Trainer.__init__

    @wraps(init)
    def with_tokenizer(self: Any, *given: Any, tokenizer: Any = None, **named: Any) -> None:
        init(self, *given, **({"processing_class": tokenizer} if tokenizer else {}), **named)

    trainer.Trainer.__init__ = with_tokenizer
    trainer.Trainer.tokenizer = property(lambda self: self.processing_class)


def watch(engine: Any) -> None:
    """Look at an engine in the first forward pass that trains, and after each step."""
    engine_class = engine.DeepSpeedEngine
    forward, step = engine_class.forward, engine_class.step

    def watched_forward(self: Any, *inputs: Any, **named: Any) -> Any:
        # A reference model has an engine, and no optimizer.
        trains = self.training and hasattr(self.optimizer, "param_groups")
        if trains and not hasattr(self, "seen"):
            self.seen = look(self, [*inputs, *named.values()])
        return forward(self, *inputs, **named)

    def watched_step(self: Any, *inputs: Any, **named: Any) -> Any:
        stepped = step(self, *inputs, **named)
        if hasattr(self, "seen"):
            write({**self.seen, "steps": self.global_steps})
        return stepped

    engine_class.forward, engine_class.step = watched_forward, watched_step


def look(engine: Any, inputs: list[Any]) -> dict[str, Any]:
    """What the engine says of itself, and what its module and its first batch show."""
    batch = [*chain(*(v.values() if isinstance(v, Mapping) else [v] for v in inputs))]
    shapes = [list(value.shape) for value in batch if getattr(value, "ndim", 0) >= 2]
    modules, weights = list(engine.module.modules()), list(engine.module.parameters())
    return {
        "stage": engine.zero_optimization_stage(),
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "accumulation_steps": engine.gradient_accumulation_steps(),
        "global_batch": engine.train_batch_size(),
        "precision": precision(engine),
        # A schedule keeps there what it starts from.
        "lr": engine.optimizer.param_groups[0].get("initial_lr", engine.get_lr()[0]),
        "clipping": engine.gradient_clipping(),
        "weights": sorted({str(weight.dtype) for weight in weights}),
        "gradient_checkpointing": any(
            getattr(module, "gradient_checkpointing", False) is True for module in modules
        ),
        "method": "full" if all(weight.requires_grad for weight in weights) else "lora",
        "world": engine.dp_world_size,
        "rows": shapes[0][0] if shapes else None,
        "length": shapes[0][1] if shapes else None,
    }


def precision(engine: Any) -> str:
    """The precision that the engine computes in."""
    if engine.bfloat16_enabled():
        return "bf16"
    return "fp16" if engine.fp16_enabled() else "fp32"


def write(seen: dict[str, Any]) -> None:
    """This rank's file, whole at any moment."""
    path = Path(str(FOLDER)) / f"rank{os.environ['RANK']}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(seen))
    part.replace(path)


if FOLDER:
    sys.meta_path.insert(0, Finder(ENGINE, watch))
if OLD:
    sys.meta_path.insert(0, Finder(TYPES, add_old_name))
    sys.meta_path.insert(0, Finder("transformers.trainer", add_old_argument))
