"""Read out of the installed DeepSpeed and torch what each optimizer and scheduler takes as `params`.

DeepSpeed's engine is asked to build each optimizer with an argument that none of them has, so that
it names its class and goes no further; then with each argument that some class has beside it.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from deepspeed.runtime import config, engine, lr_schedules
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero import utils
from deepspeed.runtime.zero.utils import is_zero_supported_optimizer
from schema.models import Row
from torch.optim import lr_scheduler

NEVER = "never_an_argument"
UNEXPECTED = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
# What is handed to a class beside the params of the config.
HANDED_OVER = ("self", "params", "model_params", "optimizer")

# Where an optimizer steps, which `core/dsconfig/schema.py` names the same.
GPU, CPU, TORCH_ADAM = "gpu", "cpu", "torch_adam"


class _Noting(dict[str, Any]):
    """The params of an optimizer; it notes which of them the engine looks for."""

    looked_for: set[str] = set()  # noqa: RUF012 (one for all copies)

    def pop(self, key: str, default: Any = None) -> Any:
        self._note(key)
        return super().pop(key, default)

    def __contains__(self, key: object) -> bool:
        self._note(str(key))
        return super().__contains__(key)

    def _note(self, key: str) -> None:
        """The engine makes other dicts too, as groups of parameters."""
        if super().__contains__(NEVER):
            self.looked_for.add(key)


class _Engine(DeepSpeedEngine):  # type: ignore[misc] # DeepSpeed has no types
    """As much of an engine as builds an optimizer."""

    zenflow = False
    has_moe_layers = False

    def __init__(self, name: str, params: Mapping[str, Any], where: str) -> None:
        self.__dict__.update(
            name=name, given=dict(params), where=where, asked_for_cpu=False, asked_for_zero=False
        )

    def __del__(self) -> None:
        """Nothing was built."""

    def optimizer_name(self) -> str:
        return str(self.name)

    def optimizer_params(self) -> dict[str, Any]:
        torch_adam = {"torch_adam": True} if self.where == TORCH_ADAM else {}
        return _Noting({**self.given, **torch_adam})

    def zero_use_cpu_optimizer(self) -> bool:
        self.__dict__["asked_for_cpu"] = True
        return bool(self.where == CPU)

    def bf16_optimizer_states(self) -> bool:
        return False

    def zero_optimization(self) -> bool:
        """Only the 1-bit optimizers ask, and refuse it."""
        self.__dict__["asked_for_zero"] = True
        return False


def class_rows() -> list[Row]:
    """Every class that the `type` of an optimizer or a scheduler can name."""
    # The engine copies the params with `dict`, and would lose who notes what is asked.
    vars(engine)["dict"] = _Noting
    # Only rank 0 logs, and no ranks are joined here.
    vars(utils)["dist"] = SimpleNamespace(get_rank=lambda: 1)
    # Of optimizers that were never finished.
    sys.unraisablehook = lambda _: None
    names = [*config.DEEPSPEED_OPTIMIZERS, *_torch_optimizers()]
    rows = [*(row for name in names for row in _optimizer(name)), *_schedulers()]
    return [{key: value for key, value in row.items() if value is not False} for row in rows]


def _torch_optimizers() -> list[str]:
    """What DeepSpeed does not build itself; the engine compares its own names in lower case."""
    base, own = torch.optim.Optimizer, set(config.DEEPSPEED_OPTIMIZERS)
    kinds = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    found = (name for name, kind in kinds.items() if issubclass(kind, base) and kind is not base)
    return sorted(name for name in found if name.lower() not in own)


def _optimizer(name: str) -> Iterator[Row]:
    """What is built on the GPU, and what else is built where that differs."""
    gpu = _built(name, GPU)
    yield gpu
    others = [CPU, TORCH_ADAM] if TORCH_ADAM in (gpu["arguments"] or ()) else [CPU]
    for other in (_built(name, where) for where in others):
        if {**other, "path": gpu["path"], "where": GPU} != gpu:
            yield other


def _built(name: str, where: str) -> Row:
    _Noting.looked_for.clear()
    answer = _ask(name, {}, where)
    looked_for = _Noting.looked_for - {NEVER, "max_grad_norm"}
    takes: list[str] | None = None
    if answer.kind is not None:
        takes = sorted(looked_for) if answer.ignores else _taken(name, where, looked_for)
    return {
        "path": f"optimizer {name} {where}",
        "name": name,
        "where": where,
        "is_deepspeeds": name in config.DEEPSPEED_OPTIMIZERS,
        "class_name": answer.kind and answer.kind.__name__,
        "arguments": takes,
        "ignores_others": answer.ignores,
        "has_cpu_form": answer.stub.asked_for_cpu,
        "refuses_zero": answer.stub.asked_for_zero,
        "tested_with_zero": _is_tested(answer.kind),
    }


def _is_tested(kind: type | None) -> bool | None:
    """By the class alone: an __init__ would compile an op."""
    return None if kind is None else bool(is_zero_supported_optimizer(object.__new__(kind)))


def _taken(name: str, where: str, looked_for: set[str]) -> list[str]:
    """What its class, or the engine before it, takes; the engine hands some over itself."""
    candidates = looked_for | {word for kind in _subclasses() for word in _signature(kind)}
    refused = {word: _ask(name, {word: None}, where).refused for word in sorted(candidates)}
    return [word for word, first in refused.items() if first == NEVER]


class _Answer(NamedTuple):
    """What the engine makes of a name and its params."""

    kind: type | None
    """What it builds; None where that needs a package that is not installed."""
    refused: str | None
    """The first argument that the class refuses."""
    ignores: bool
    stub: _Engine
    """It knows what it was asked on the way."""


def _ask(name: str, params: Mapping[str, Any], where: str) -> _Answer:
    stub = _Engine(name, {**params, NEVER: None}, where)
    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    parameter.use_muon = True
    kind: type | None = None
    refused, ignores = None, False
    try:
        kind, ignores = type(stub._configure_basic_optimizer([parameter])), True
    except Exception as error:  # noqa: BLE001 (whatever DeepSpeed raises is its answer)
        if found := UNEXPECTED.search(str(error)):
            kind, refused = _class(found[1]), found[2]
    return _Answer(kind, refused, ignores, stub)


def _subclasses() -> list[type]:
    found = [torch.optim.Optimizer]
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found[1:] if "_multi_tensor" not in kind.__module__]


def _class(name: str) -> type | None:
    return next((kind for kind in _subclasses() if kind.__name__ == name), None)


def _signature(kind: type) -> list[str]:
    names = inspect.signature(kind).parameters.values()
    return [
        each.name
        for each in names
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) and each.name not in HANDED_OVER
    ]


def _schedulers() -> Iterator[Row]:
    """As `_scheduler_from_config` finds them: DeepSpeed's own, then torch's."""
    own = lr_schedules.VALID_LR_SCHEDULES
    torchs = [name for name in lr_scheduler.__all__ if name not in own]
    for name in (*own, *torchs):
        kind = getattr(lr_schedules if name in own else lr_scheduler, name)
        parameters = inspect.signature(kind).parameters.values()
        needs = [each.name for each in parameters if each.default is each.empty]
        yield {
            "path": f"scheduler {name}",
            "name": name,
            "is_deepspeeds": name in own,
            "class_name": kind.__name__,
            "arguments": sorted(_signature(kind)),
            "needs": [word for word in needs if word not in HANDED_OVER],
        }
