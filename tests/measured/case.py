"""Run one case in a fresh process: build, initialize, take real steps, and report each phase."""

import json
import os
import sys
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import deepspeed
import torch
import transformers
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from measured.loops import (
    CpuMeter,
    CudaMeter,
    Meter,
    StepRecorder,
    TimingPass,
    train_by_engine,
)
from measured.models import build_model, count_params
from measured.ranks import (
    Case,
    CaseStart,
    Report,
    case_file,
    read_start,
    report_file,
    start_file,
)

# Exit statuses of a case.
_OK, _FAILED, _OUT_OF_MEMORY = 0, 1, 3


def preload(cases: Iterable[Case]) -> None:
    """Load the modules of the cases' models and loops, so that the forked processes share them.

    The Trainer loads peft, which loads bitsandbytes where it is installed, which opens CUDA: then
    each process loads them by itself, as CUDA does not survive a fork.
    """
    cases = tuple(cases)
    by_trainer = any(case["kind"] == "trainer" for case in cases)
    if by_trainer and find_spec("bitsandbytes") is None:
        import measured.trainer_loop  # noqa: F401 - takes seconds
    named = {name for case in cases for name in case["config"].get("architectures") or ()}
    for name in named:
        getattr(transformers, name, None)


def can_fork() -> bool:
    """In a forked process: whether CUDA was not initialized before the fork."""
    return not torch.cuda._is_in_bad_fork()


def run_case(case: Case, rank: int, folder: Path, until: float) -> int:
    """Run and measure a case; the exit status is _OK, _FAILED or _OUT_OF_MEMORY.

    Args:
        case: What is run.
        rank: This rank, which is also its device's number.
        folder: The folder of the case.
        until: When it has to be over, in seconds since 1970.
    """
    if _has_own_cores():
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    on_cuda = get_accelerator().device_name() == "cuda"
    meter: Meter = CudaMeter() if on_cuda else CpuMeter()
    recorder = StepRecorder(report_file(folder, rank), meter)
    try:
        device = open_cuda(case, rank) if on_cuda else torch.device("cpu")
        timing = TimingPass(case, device, meter, recorder, until)
        _measure(case, folder, device, meter, recorder, timing)
        recorder.add(ok=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, the row says it
        traceback.print_exc()
        return _fail(recorder, error)
    sys.stdout.flush()
    sys.stderr.flush()
    return _OK


def _has_own_cores() -> bool:
    """Whether this process may run on fewer cores than the one that forked it."""
    return os.sched_getaffinity(0) < os.sched_getaffinity(os.getppid())


def _fail(recorder: StepRecorder, error: Exception) -> int:
    """Report an error: either running out of memory, or another failure."""
    message = str(error).strip() or "no message"
    if is_out_of_memory(error):
        recorder.add(oom_phase=recorder.phase or recorder.phase_name)
        return _OUT_OF_MEMORY
    where = recorder.phase_name
    recorder.add(error=f"{type(error).__name__} in {where}: {message.splitlines()[0]}")
    return _FAILED


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out. NCCL, cuBLAS and the CPU allocator raise a plain RuntimeError."""
    message = str(error).lower()
    texts = ("out of memory", "cublas_status_alloc_failed", "can't allocate memory")
    memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return memory or (isinstance(error, RuntimeError) and any(text in message for text in texts))


def open_cuda(case: Case, rank: int) -> torch.device:
    """Set up this rank's GPU and the allocator of the case, before anything is allocated."""
    expandable = f"expandable_segments:{case['expandable_segments']}"
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = expandable
    os.environ.pop("PYTORCH_ALLOC_CONF", None)
    if not case["nccl_p2p"]:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    # torch may have read the environment already, at import.
    newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    set_allocator = newer or getattr(torch.cuda.memory, "_set_allocator_settings", None)
    if set_allocator is not None:
        set_allocator(expandable)
    device = torch.device("cuda", rank // case["ranks_on_one_gpu"])
    torch.cuda.set_device(device)
    cap_bytes = case["memory_cap_bytes"]
    if cap_bytes is not None:
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total_bytes), device)
    # DeepSpeed resets the peaks in the middle of phases (runtime/utils.py, see_memory_usage).
    get_accelerator().reset_peak_memory_stats = lambda *_: None
    return device


def _measure(
    case: Case,
    folder: Path,
    device: torch.device,
    meter: Meter,
    recorder: StepRecorder,
    timing: TimingPass,
) -> None:
    # CUDA creates its context here.
    torch.ones(1, device=device).add_(1)
    described = describe(device)
    described["context_bytes"] = meter.outside_bytes()
    recorder.add(**described)
    deepspeed.init_distributed()
    # NCCL opens its channels at the first collective.
    dist.all_reduce(torch.ones(1, device=device))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    recorder.add(context_and_nccl_bytes=meter.outside_bytes())
    torch.manual_seed(0)

    def build() -> Any:
        with recorder.measured("model"):
            model = build_model(case, folder, device)
        params = count_params(model, trainable=False)
        adapters = None if case["lora_rank"] is None else count_params(model, trainable=True)
        recorder.add(params=params, trainable_params=adapters)
        return model

    if case["kind"] == "trainer":
        from measured.trainer_loop import train_by_trainer

        train_by_trainer(case, folder, device, recorder, timing, build)
    else:
        train_by_engine(case, build(), device, recorder, timing)
    dist.barrier()


def describe(device: torch.device) -> Report:
    """What this rank runs with."""
    loaded = {"torch": torch, "deepspeed": deepspeed, "transformers": transformers}
    described: Report = {
        "versions": {name: module.__version__ for name, module in loaded.items()},
        # Of the process that forked this one, which no case binds.
        "cpu_cores": len(os.sched_getaffinity(os.getppid())),
        "cores_bound": _has_own_cores(),
        "cpu_threads": torch.get_num_threads(),
    }
    if device.type != "cuda":
        return {**described, "gpu": "CPU rank"}
    settings = torch.cuda.memory._snapshot().get("allocator_settings", {})
    return {
        **described,
        "gpu": torch.cuda.get_device_name(device),
        "expandable_segments": settings.get("expandable_segments"),
    }


# Run one case in a fresh interpreter, where a fork would inherit an initialized CUDA.


def main() -> None:
    """Run the case of a folder as this rank, and exit with its status."""
    folder = Path(sys.argv[1])
    case = json.loads(case_file(folder).read_text(encoding="utf-8"))
    start = cast("CaseStart", read_start(start_file(folder)))
    code = run_case(case, int(os.environ["RANK"]), folder, start["until"])
    # gloo's thread wants the interpreter lock while Python finalises, and may abort it.
    os._exit(code)


if __name__ == "__main__":
    main()
