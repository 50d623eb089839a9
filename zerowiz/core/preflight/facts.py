"""State what the probes found around a job; what is not known is None."""

from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct, field

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.job import Job
from zerowiz.core.dsconfig.merge import section_of, value_at
from zerowiz.core.findings import BadRelease
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.script.facts import Resolver
from zerowiz.core.script.settings import AddedWords
from zerowiz.core.strategy_types import Strategy
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration

# Find which ops DeepSpeed compiles for a config when the job starts.

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
    zero = section_of(config, "zero_optimization")
    ops = [*_optimizer_ops(config, zero, integration, own_optimizers, passes=passes_optimizer)]
    if "nvme" in (
        value_at(zero, "offload_optimizer.device"),
        value_at(zero, "offload_param.device"),
    ):
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
    offloads = value_at(zero, "offload_optimizer.device") not in (None, "none")
    asked = section_of(config, "optimizer")
    if asked and not passes:
        kind, params = str(asked.get("type", "")).lower(), section_of(asked, "params")
        on_device, offloaded = _BY_NAME.get(kind, (None, None))
        op = offloaded if offloads else on_device
        if op is not None and params.get("torch_adam") is not True:
            yield op
        return
    # accelerate/accelerator.py, _prepare_deepspeed (1.15): torch's Adam becomes DeepSpeed's own.
    swaps = integration is not None and not integration.row.as_written
    if swaps and offloads and config.get("zero_force_ds_cpu_optimizer", True) is True:
        yield CPU_ADAM
    ops = _HOST_CLASSES if offloads else _DEVICE_CLASSES
    if len(own_optimizers) == 1:
        ops = {**_DEVICE_CLASSES, **_HOST_CLASSES}
    for name in own_optimizers:
        if name in ops:
            yield replace(ops[name], likely=len(own_optimizers) > 1)


class Torch(Struct, frozen=True, kw_only=True):
    """What torch's own files show of it."""

    version: str
    cuda_version: tuple[int, int] | None = None
    """What it was built with; None for a build without."""


class Installed(Struct, frozen=True, kw_only=True):
    """The Python that the ranks run with, and what it has."""

    program: str
    """`deepspeed`."""
    interpreter: str | None = None
    """What its first line starts."""
    own: bool = False
    """Whether that is the Python of zerowiz."""
    failure: str | None = None
    """Why it could not be asked: `does not exist`."""
    is_slow: bool = False
    """Whether it could not be asked because it took too long."""
    modules: Mapping[str, str | None] | None = None
    """What it can import of what it was asked for, each with its release where that is known."""
    torch: Torch | None = None
    prebuilt: frozenset[str] = frozenset()
    """Ops that were compiled when DeepSpeed was installed."""
    has_headers: bool | None = None
    """Whether `Python.h` is there."""
    extensions_folder: str | None = None
    """Where torch builds ops."""

    def version(self, name: str) -> str | None:
        """The release of a module; None where it is not known."""
        return None if self.modules is None else self.modules.get(name)

    def lacks(self, name: str) -> bool:
        """Whether it surely cannot import a module for which it was asked."""
        return self.modules is not None and name not in self.modules


class Toolchain(Struct, frozen=True, kw_only=True):
    """What an op is built with."""

    compiler: str
    """As torch calls it: `$CXX`, else `c++`."""
    has_compiler: bool
    has_ninja: bool
    cuda_home: str | None = None
    """As torch finds it; None where it finds none."""
    has_nvcc: bool = False
    cuda_version: tuple[int, int] | None = None
    """The version that nvcc prints, where it was run."""
    has_libaio: bool | None = None


class Lock(Struct, frozen=True, kw_only=True):
    """A file that stands while an op is built, and that no process seen here has open."""

    path: str
    op: str
    """What is built."""
    age_milliseconds: int
    sees_all: bool = False
    """Whether every process that could have it open was looked at."""


class Extensions(Struct, frozen=True, kw_only=True):
    """Where ops are built."""

    folder: str
    writable: bool | None = None
    built: frozenset[str] = frozenset()
    locks: tuple[Lock, ...] = ()


class Folder(Struct, frozen=True, kw_only=True):
    """A folder that the job writes to."""

    path: str
    is_folder: bool | None = None
    writable: bool | None = None
    free_bytes: int | None = None
    holds_states: bool = False
    """Whether an earlier job offloaded to it; its files are written over."""


class SavedStates(Struct, frozen=True, kw_only=True):
    """The states of DeepSpeed in the checkpoint that a job resumes from."""

    path: str
    """Of the checkpoint, as the script gets it."""
    tag: str
    """DeepSpeed's folder in it: `global_step500`."""
    stages: tuple[int, ...]
    """The stages that save such files, each of which loads what the others saved."""
    ranks: int | None = None
    """How many saved a part each; None at stage 0, where the states are whole."""


class SourceFolder(Struct, frozen=True, kw_only=True):
    """A folder that has a package which is not installed."""

    path: str
    """What would have to be on Python's path."""
    project: str | None = None
    """The folder that pip can install it from; None where nothing says how."""


class Import(Struct, frozen=True, kw_only=True):
    """A library that a script imports at its top, without a condition."""

    path: str
    """Of the script."""
    line: int
    name: str
    source: SourceFolder | None = None
    """Where its package is, if it is one of the script's own repository."""


class PreflightFacts(Struct, frozen=True, kw_only=True):
    """Everything that the probes read."""

    installed: Installed | None = None
    bad_releases: tuple[BadRelease, ...] = ()
    """Every row of the table."""
    toolchain: Toolchain | None = None
    extensions: Extensions | None = None
    imports: tuple[Import, ...] = ()
    nvme: Folder | None = None
    checkpoints: Folder | None = None
    resumed: SavedStates | None = None
    """None if the script resumes from none, or if they cannot be read."""
    shm_free_bytes: int | None = None
    locks_any_amount: bool | None = None
    """Whether the limit on locked memory does not bind this process."""

    @property
    def torch(self) -> Torch | None:
        """The torch of the ranks, where its files could be read."""
        return None if self.installed is None else self.installed.torch


# Join the planned job with the facts about its host, for the preflight checks to read.


class PlannedJob(Struct, frozen=True, kw_only=True):
    """The job that is to start."""

    job: Job
    evaluated: StrategyEstimate
    integration: Integration | None = None
    ops: tuple[Op, ...] = ()
    """What DeepSpeed compiles for it."""
    uses_peft: bool = False
    uses_bitsandbytes: bool = False
    script: Resolver | None = None
    """The script with the words after it."""
    settled: tuple[AddedWords, ...] = ()
    """What zerowiz adds to these words."""
    config: Mapping[str, object] | None = None
    """What DeepSpeed reads."""
    escalates: bool = False
    """Whether it may start again with a strategy that needs less memory."""
    transformers: str | None = None
    """The release that zerowiz finds, where that of the ranks is not known."""

    @property
    def strategy(self) -> Strategy:
        """The strategy that was decided."""
        return self.evaluated.strategy


class PreflightInput(Struct, frozen=True, kw_only=True):
    """A job, the machine that it starts on, and what is around it."""

    machine: Machine | None = None
    planned: PlannedJob | None = None
    facts: PreflightFacts = field(default_factory=PreflightFacts)
    environ: Mapping[str, str] = field(default_factory=dict)
    """What the ranks will get."""

    @property
    def on_gpus(self) -> bool:
        """Whether the ranks train on GPUs."""
        return self.machine is not None and self.machine.accelerator is Accelerator.CUDA
