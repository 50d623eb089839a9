"""Build the optimizer of a case, by the name that measured rows use for it."""

from collections.abc import Callable, Mapping
from typing import Any

import deepspeed
import torch
import transformers

from zerowiz.worker.errors import MissingLibraryError

# Small enough that a model does not diverge on random tokens within three steps.
_RATE = 1e-5

Parameters = list[Any]
Config = Mapping[str, Any]


def _torch_adamw(**how: bool) -> Callable[[Parameters, Config], Any]:
    return lambda parameters, _: torch.optim.AdamW(parameters, lr=_RATE, **how)


def _fused_adam(parameters: Parameters, _: Config) -> Any:  # noqa: ANN401 - untyped libraries
    return deepspeed.ops.adam.FusedAdam(parameters, lr=_RATE)


def _cpu_adam(parameters: Parameters, config: Config) -> Any:  # noqa: ANN401
    half = config.get("bf16", {}).get("bf16_optimizer_states", False)
    return deepspeed.ops.adam.DeepSpeedCPUAdam(parameters, lr=_RATE, fp32_optimizer_states=not half)


def _fused_lion(parameters: Parameters, _: Config) -> Any:  # noqa: ANN401
    return deepspeed.ops.lion.FusedLion(parameters, lr=_RATE)


def _cpu_lion(parameters: Parameters, _: Config) -> Any:  # noqa: ANN401
    return deepspeed.ops.lion.DeepSpeedCPULion(parameters, lr=_RATE)


def _adamw_8bit(parameters: Parameters, _: Config) -> Any:  # noqa: ANN401
    try:
        import bitsandbytes  # noqa: PLC0415 - the only optimizer that needs it
    except ImportError as error:
        raise MissingLibraryError(f"bitsandbytes cannot be loaded: {error}") from error
    return bitsandbytes.optim.AdamW8bit(parameters, lr=_RATE)


def _adafactor(parameters: Parameters, _: Config) -> Any:  # noqa: ANN401
    return transformers.Adafactor(parameters, lr=_RATE, scale_parameter=False, relative_step=False)


def _sgd(parameters: Parameters, _: Config) -> Any:  # noqa: ANN401
    return torch.optim.SGD(parameters, lr=_RATE)


# The names are those of OptimizerKernel (`core/measure/optimizer_kernels.py`). One of them is
# missing here: DeepSpeed builds it from the config.
BUILDERS: Mapping[str, Callable[[Parameters, Config], Any]] = {
    "torch AdamW fused=True": _torch_adamw(fused=True),
    "torch AdamW foreach=True": _torch_adamw(foreach=True),
    "FusedAdam": _fused_adam,
    "DeepSpeedCPUAdam": _cpu_adam,
    "AdamW8bit": _adamw_8bit,
    "Adafactor": _adafactor,
    "FusedLion": _fused_lion,
    "DeepSpeedCPULion": _cpu_lion,
    "torch SGD": _sgd,
}


def build_optimizer(name: str, parameters: Parameters, config: Config) -> Any:  # noqa: ANN401
    """The optimizer; None where the config has a section for it, so that DeepSpeed builds it."""
    return None if "optimizer" in config else BUILDERS[name](parameters, config)
