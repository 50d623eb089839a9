"""Plan a launch: the files, the command and the environment, as one value that can be shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zerowiz.core.machine import Accelerator, Machine
from zerowiz.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedFile:
    """A file to write, whole."""

    path: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """What `emit.execute` does and `--dry-run` prints; there is no second path."""

    files: tuple[PlannedFile, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Variables that differ from the caller's environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Programs:
    """What runs the job, as the probe found it."""

    deepspeed: str
    bin_folder: str
    """Beside the interpreter; JIT builds look for ninja on PATH."""
    master_port: int
    """Free a moment ago: DeepSpeed's own default collides when two jobs share a host."""
    extensions_folder: str | None
    """Where compiled DeepSpeed ops stay apart per environment; None outside a virtual one."""


def launcher_options(machine: Machine, hostfile: str | None) -> tuple[str, ...]:
    """DeepSpeed's own options, which stand before the script.

    `--include` names slots explicitly: with CUDA_VISIBLE_DEVICES set, `--num_gpus` drops it and
    takes the first GPUs. The CPU accelerator counts one slot, so there it is `--num_gpus`
    (deepspeed/launcher/runner.py, 0.19.8).
    """
    if hostfile is not None:
        return ("--hostfile", hostfile)
    if machine.accelerator is Accelerator.CPU:
        return ("--num_gpus", str(len(machine.gpus)))
    _refuse_slices(machine)
    slots = ",".join(str(gpu.cuda_ordinal) for gpu in machine.gpus)
    return ("--include", f"localhost:{slots}")


def _refuse_slices(machine: Machine) -> None:
    """DeepSpeed's launcher takes whole numbers alone, and CUDA gives a process one slice."""
    slices = [gpu.label for gpu in machine.gpus if gpu.mig_slice is not None]
    if slices:
        raise UsageError(
            f"GPU {', '.join(slices)}: DeepSpeed's launcher cannot name a MIG slice",
            "`zerowiz init` writes its config; start it by"
            " `CUDA_VISIBLE_DEVICES=MIG-... torchrun --nproc-per-node 1 SCRIPT ...`",
            "or give the job whole GPUs: `--gpus`, `CUDA_VISIBLE_DEVICES`",
        )


def launch_env(
    machine: Machine, programs: Programs, environ: Mapping[str, str], delivery: Mapping[str, str]
) -> dict[str, str]:
    """Variables the job needs that the caller's environment lacks; never overrides a user's."""
    env = dict(delivery)
    if machine.accelerator is Accelerator.CPU:
        env["DS_ACCELERATOR"] = "cpu"
    else:
        # NVML's indices are PCI order; CUDA's are not unless it is told so.
        env |= _unless_set(environ, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
        # Runs b4-009 and d4-013: reserved memory 64.0 GB without it, 50.6 GB with it.
        if "PYTORCH_ALLOC_CONF" not in environ:
            alloc = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
            env |= _unless_set(environ, alloc)
    if programs.extensions_folder is not None:
        env |= _unless_set(environ, {"TORCH_EXTENSIONS_DIR": programs.extensions_folder})
    folders = environ.get("PATH", "").split(":")
    if programs.bin_folder not in folders:
        env["PATH"] = ":".join([programs.bin_folder, *filter(None, folders)])
    return env


def _unless_set(environ: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if name not in environ}


def launch_argv(
    programs: Programs, options: Sequence[str], script: str, script_args: Sequence[str]
) -> tuple[str, ...]:
    """The command: launcher options stand before the script, everything after it is its own."""
    port = ("--master_port", str(programs.master_port))
    return (programs.deepspeed, *options, *port, script, *script_args)
