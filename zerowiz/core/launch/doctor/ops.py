"""Find which ops DeepSpeed compiles for a config when the job starts."""

from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct

from zerowiz.core.machine.types import Accelerator
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration

Values = Mapping[str, object]


class Op(Struct, frozen=True, kw_only=True):
    """A C++ extension that torch builds in the first rank that asks for it."""

    name: str
    """The folder that it is built in."""
    nvcc: bool = False
    """Whether CUDA's compiler takes part on a GPU machine."""
    libaio: bool = False
    likely: bool = False
    """The script may as well take an optimizer that needs no such op."""


# deepspeed/ops/op_builder, 0.19.8: a CUDAOpBuilder asks nvcc for its version whatever its sources
# are, async_io's C++ included; ops for the host come from op_builder/cpu on every accelerator.
CPU_ADAM, CPU_LION = Op(name="cpu_adam"), Op(name="cpu_lion")
CPU_ADAGRAD = Op(name="cpu_adagrad")
FUSED_ADAM, FUSED_LION = Op(name="fused_adam", nvcc=True), Op(name="fused_lion", nvcc=True)
FUSED_LAMB = Op(name="fused_lamb", nvcc=True)
ASYNC_IO, PIN_MEMORY = Op(name="async_io", nvcc=True, libaio=True), Op(name="pin_memory")
QUANTIZER = Op(name="quantizer", nvcc=True)
SHM_COMM = Op(name="deepspeed_shm_comm")

# deepspeed/ops/op_builder (0.19.8): the class that builds each.
BUILT_BY: Mapping[str, Op] = {
    "CPUAdamBuilder": CPU_ADAM,
    "CPULionBuilder": CPU_LION,
    "FusedAdamBuilder": FUSED_ADAM,
    "FusedLionBuilder": FUSED_LION,
    "AsyncIOBuilder": ASYNC_IO,
    "ShareMemCommBuilder": SHM_COMM,
}

# deepspeed/runtime/engine.py, _configure_basic_optimizer (0.19.8): on the device; offloaded.
_BY_NAME: Mapping[str, tuple[Op | None, Op]] = {
    "adam": (FUSED_ADAM, CPU_ADAM),
    "adamw": (FUSED_ADAM, CPU_ADAM),
    "lion": (FUSED_LION, CPU_LION),
    "adagrad": (None, CPU_ADAGRAD),
    "lamb": (FUSED_LAMB, FUSED_LAMB),
}
# deepspeed/ops: what a script's own optimizer loads.
_DEVICE_CLASSES: Mapping[str, Op] = {
    "FusedAdam": FUSED_ADAM,
    "FusedLion": FUSED_LION,
}
_HOST_CLASSES: Mapping[str, Op] = {
    "DeepSpeedCPUAdam": CPU_ADAM,
    "DeepSpeedCPULion": CPU_LION,
}


def list_ops(
    config: Values,
    *,
    accelerator: Accelerator,
    integration: Integration | None,
    own_optimizers: Collection[str] = (),
    passes_optimizer: bool = False,
) -> tuple[Op, ...]:
    """The ops of a job, each once.

    Args:
        config: What DeepSpeed will read.
        accelerator: What it runs on.
        integration: Who hands it over.
        own_optimizers: The classes that the script builds, where they can be seen. Of several it
            likely takes one for the host where the states are offloaded, and only there.
        passes_optimizer: Whether a plain loop hands it to DeepSpeed, which then reads no other.
    """
    zero = _section(config, "zero_optimization")
    ops = [*_optimizer_ops(config, zero, integration, own_optimizers, passes=passes_optimizer)]
    if "nvme" in (_device(zero, "offload_optimizer"), _device(zero, "offload_param")):
        ops += [PIN_MEMORY, ASYNC_IO]
    if zero.get("zero_quantized_weights") is True or zero.get("zero_quantized_gradients") is True:
        ops.append(QUANTIZER)
    if accelerator is Accelerator.CPU:
        # deepspeed/comm/torch.py, TorchBackend.__init__ (0.19.8): whatever the job is.
        ops.append(SHM_COMM)
    by_name = {op.name: op for op in reversed(ops)}
    return tuple(by_name[name] for name in dict.fromkeys(op.name for op in ops))


def _optimizer_ops(
    config: Values,
    zero: Values,
    integration: Integration | None,
    own_optimizers: Collection[str],
    *,
    passes: bool,
) -> Iterator[Op]:
    offloads = _device(zero, "offload_optimizer") not in (None, "none")
    asked = _section(config, "optimizer")
    if asked and not passes:
        kind, params = str(asked.get("type", "")).lower(), _section(asked, "params")
        on_device, offloaded = _BY_NAME.get(kind, (None, None))
        op = offloaded if offloads else on_device
        if op is not None and params.get("torch_adam") is not True:
            yield op
        return
    # accelerate/accelerator.py, _prepare_deepspeed (1.15): torch's Adam becomes DeepSpeed's own.
    swaps = integration in (Integration.HF, Integration.ACCELERATE)
    if swaps and offloads and config.get("zero_force_ds_cpu_optimizer", True) is True:
        yield CPU_ADAM
    ops = _HOST_CLASSES if offloads else _DEVICE_CLASSES
    if len(own_optimizers) == 1:
        ops = {**_DEVICE_CLASSES, **_HOST_CLASSES}
    for name in own_optimizers:
        if name in ops:
            yield replace(ops[name], likely=len(own_optimizers) > 1)


def _section(values: Values, key: str) -> Values:
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}


def _device(zero: Values, key: str) -> object:
    return _section(zero, key).get("device")
