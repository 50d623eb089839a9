"""Check that torch, the driver and the number format fit the chosen GPUs, or the CPU."""

from collections.abc import Iterator

from zerowiz.core.decision.precision import BF16_IS_EMULATED, emulates_bf16
from zerowiz.core.launch.doctor.finding import PreflightFinding, found
from zerowiz.core.launch.doctor.inputs import PreflightInput
from zerowiz.core.launch.doctor.network import SLOW_BY_CHOICE
from zerowiz.core.machine.types import Gpu, Machine
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.workload.choices import Precision
from zerowiz.core.workload.workload import Workload
from zerowiz.words import _, listing

# NVIDIA, CUDA compatibility, minor version compatibility: from CUDA 11 on a driver runs what any
# release of its own major version built, and what older ones did. What NVML tells is that of the
# libcuda which is loaded, so a forward compatibility package counts.
_FIRST_COMPATIBLE_MAJOR = 11

# Linux drivers by the major version of CUDA; same page, table 1.
_DRIVERS = {11: "450", 12: "525", 13: "580"}

# Reinstalling picks the build for another CUDA; https://pytorch.org/get-started/locally.
_TORCH_PAGE = _("choose a build at https://pytorch.org/get-started/locally")

# deepspeed/accelerator/cuda_accelerator.py, is_fp16_supported (0.19.8).
_FP16_MAJOR = 7
_DEPRECATED_FP16 = (6, "DS_ALLOW_DEPRECATED_FP16")


ACCELERATOR = Rule(
    code="PF307",
    name="accelerator",
    severity=Severity.ERROR,
    why=_("DeepSpeed uses the device that the variable names"),
    when=_("`DS_ACCELERATOR` conflicts with the plan"),
)


def _accelerator(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """A launch sets the variable for the CPU alone."""
    name = inputs.environ.get("DS_ACCELERATOR")
    if name is not None and inputs.on_gpus and name != "cuda":
        yield found(
            ACCELERATOR,
            _("`DS_ACCELERATOR={name}` is set, but the plan is for GPUs", name=name),
            "unset DS_ACCELERATOR",
            _("use the CPU instead: `$accelerator cpu`"),
        )


TORCH_WITHOUT_CUDA = Rule(
    code="PF302",
    name="torch-without-cuda",
    severity=Severity.ERROR,
    why=_("torch sees none of the GPUs"),
    when=_("torch is a build for the CPU or ROCm, and the GPUs are NVIDIA's"),
)


def _cuda_build(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    torch = inputs.facts.torch
    if inputs.on_gpus and torch is not None and torch.cuda_version is None:
        kind = "ROCm" if torch.hip else _("the CPU")
        yield found(
            TORCH_WITHOUT_CUDA,
            _("torch {version} is a build for {kind}", version=torch.version, kind=kind),
            _TORCH_PAGE,
        )


OLD_DRIVER = Rule(
    code="PF303",
    name="old-driver",
    severity=Severity.ERROR,
    why=_("a driver supports its own major version of CUDA and older ones only"),
    when=_("torch is built for a newer major version of CUDA than the driver supports"),
)


def _driver(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    torch, machine = inputs.facts.torch, inputs.machine
    if machine is None or not inputs.on_gpus or torch is None or torch.cuda_version is None:
        return
    newest = machine.cuda_version
    if newest is None:
        return
    same_major = torch.cuda_version[0] <= newest[0] and newest[0] >= _FIRST_COMPATIBLE_MAJOR
    if same_major or torch.cuda_version <= newest:
        return
    wanted, least = _dotted(torch.cuda_version), _DRIVERS.get(torch.cuda_version[0])
    yield found(
        OLD_DRIVER,
        _(
            "torch {version} is built for CUDA {wanted}, and driver {driver_version} "
            "supports up to {newest}",
            version=torch.version,
            wanted=wanted,
            driver_version=machine.driver_version or _("here"),
            newest=_dotted(newest),
        ),
        _(
            "install a torch built for CUDA {newest}: {torch_page}",
            newest=newest[0],
            torch_page=_TORCH_PAGE,
        ),
        *([_("or install driver {least} or later", least=least)] if least else []),
    )


NO_CODE_FOR_GPU = Rule(
    code="PF304",
    name="no-code-for-gpu",
    severity=Severity.ERROR,
    why=_("the first kernel fails with `no kernel image is available`"),
    when=_("the GPU is too old for this release of torch"),
)


def _code(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """An older GPU than any that there is code for; a newer one may have its code made."""
    torch, machine = inputs.facts.torch, inputs.machine
    if machine is None or not inputs.on_gpus or torch is None or not torch.capabilities:
        return
    oldest = min(torch.capabilities)
    for gpu in machine.gpus:
        capability = gpu.compute_capability
        if capability is not None and capability < oldest:
            yield found(
                NO_CODE_FOR_GPU,
                _(
                    "torch {version} supports compute capability {oldest} and later, and "
                    "GPU {label} ({gpu}) is {capability}",
                    version=torch.version,
                    oldest=_dotted(oldest),
                    label=gpu.label,
                    gpu=gpu.name,
                    capability=_dotted(capability),
                ),
                _("install a torch built for an older CUDA: {torch_page}", torch_page=_TORCH_PAGE),
            )


BUSY_GPU = Rule(
    code="PF305",
    name="busy-gpu",
    severity=Severity.INFO,
    why=_("the plan uses the memory that is free now"),
    when=_("other processes use a GPU of the job"),
)


def _busy(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    for gpu in () if inputs.machine is None or not inputs.on_gpus else inputs.machine.gpus:
        if gpu.processes:
            pids = " ".join(str(process.pid) for process in gpu.processes)
            names = listing(f"{p.name or _('a process')} ({p.pid})" for p in gpu.processes)
            yield found(
                BUSY_GPU,
                _("GPU {label} is in use by {names}", label=gpu.label, names=names),
                _(
                    "see whose they are with `ps -fp {pids}`, or choose other GPUs with `$gpus`",
                    pids=pids,
                ),
            )


def _precision(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    if inputs.planned is None or inputs.machine is None:
        return
    step = inputs.planned.job.workload
    if not inputs.on_gpus:
        yield from _precision_on_cpu(inputs.machine, step)
        return
    formats = {step.precision, step.torch_autocast}
    if Precision.FP16 in formats:
        yield from _fp16(inputs, inputs.machine)
    if Precision.BF16 in formats and not inputs.machine.takes_bf16:
        gpu = min(inputs.machine.gpus, key=_capability)
        yield found(
            SLOW_BY_CHOICE,
            _(
                "the job uses bf16, and GPU {label} ({gpu}) has no matrix units for it",
                label=gpu.label,
                gpu=gpu.name,
            ),
            _("use fp16, unless the script sets bf16: `$precision fp16`"),
        )


HALF_PRECISION = Rule(
    code="PF306",
    name="half-precision",
    severity=Severity.ERROR,
    why=_("DeepSpeed rejects fp16 on this device"),
    when=_("fp16 on a GPU or CPU that DeepSpeed does not support it on"),
)


def _precision_on_cpu(machine: Machine, step: Workload) -> Iterator[PreflightFinding]:
    fixes = ("`$precision fp32`", _("if the script sets fp16, remove that"))
    # deepspeed/runtime/engine.py, _do_sanity_check (0.19.8); autocast does not ask.
    if step.precision is Precision.FP16 and machine.host.computes_fp16 is False:
        yield found(
            HALF_PRECISION, _("the job uses fp16, and this CPU has no fp16 instructions"), *fixes
        )
    if emulates_bf16(machine, step):
        yield found(SLOW_BY_CHOICE, BF16_IS_EMULATED, *fixes)


def _fp16(inputs: PreflightInput, machine: Machine) -> Iterator[PreflightFinding]:
    major, variable = _DEPRECATED_FP16
    allowed = inputs.environ.get(variable) == "1"
    for gpu in machine.gpus:
        capability = gpu.compute_capability
        if capability is None or capability[0] >= _FP16_MAJOR:
            continue
        if not (allowed and capability[0] == major):
            yield found(
                HALF_PRECISION,
                _(
                    "the job uses fp16, and GPU {label} ({gpu}) has compute capability "
                    "{capability}",
                    label=gpu.label,
                    gpu=gpu.name,
                    capability=_dotted(capability),
                ),
                _("use fp32, unless the script sets fp16: `$precision fp32`"),
                *(
                    [_("or `export {variable}=1`", variable=variable)]
                    if capability[0] == major
                    else []
                ),
            )


def _capability(gpu: Gpu) -> tuple[int, int]:
    return gpu.compute_capability or (99, 0)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def check_gpus(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """The accelerator, torch's build, the driver, other processes and the number format."""
    for each in (_accelerator, _cuda_build, _driver, _code, _busy, _precision):
        yield from each(inputs)
