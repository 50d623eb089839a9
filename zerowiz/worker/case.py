"""Run one case in a fresh process: build, initialize, take real steps, and report each phase."""

import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed
import torch
import transformers
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator

from zerowiz.worker.marks import Values, report_mark, write_mark
from zerowiz.worker.meters import CpuMeter, CudaMeter, Meter
from zerowiz.worker.models import build_model, count_params, make_batch
from zerowiz.worker.optimizers import build_optimizer

_OK, _FAILED, _OUT_OF_MEMORY = 0, 1, 3

Case = dict[str, Any]


class StepRecorder:
    """What this rank reports; it is written after each phase, so a killed case loses nothing."""

    def __init__(self, path: Path, rank: int, meter: Meter) -> None:
        self._path = path
        self._meter = meter
        self.phase = "start"
        self.report: Values = {"rank": rank, "ok": False, "oom_phase": None, "error": None}
        self.report |= {"phases": {}, "step_seconds": []}

    def add(self, **values: object) -> None:
        """Say more."""
        self.report |= values
        write_mark(self._path, self.report)

    @contextmanager
    def measured(self, phase: str) -> Iterator[None]:
        """Measure a phase; of one that comes more than once, the largest peak and the last end."""
        self.phase = phase
        self._meter.begin()
        try:
            yield
        finally:
            self._end(phase)

    def _end(self, phase: str) -> None:
        reading, phases = self._meter.end(), self.report["phases"]
        before = phases.get(phase, reading)["peak_bytes"]
        if reading["peak_bytes"] is not None and before is not None:
            reading["peak_bytes"] = max(reading["peak_bytes"], before)
        phases[phase] = reading
        self.add(
            allocator_retries=self._meter.retries(),
            peak_reserved_bytes=reading["peak_reserved_bytes"],
            host_peak_rss_bytes=self._meter.host_peak_rss_bytes(),
        )


def preload(cases: Iterable[Case]) -> None:
    """Load what the cases' models are made of, so that their processes share it."""
    named = {name for case in cases for name in case["config"].get("architectures") or ()}
    for name in named:
        getattr(transformers, name, None)


def can_fork() -> bool:
    """Asked in a fork: whether CUDA was left alone before it."""
    return not torch.cuda._is_in_bad_fork()  # noqa: SLF001 - torch's own question


def run_case(case: Case, rank: int, folder: Path) -> int:
    """Measure; the exit status says whether it lived, failed, or ran out of memory."""
    on_cuda = get_accelerator().device_name() == "cuda"
    meter: Meter = CudaMeter() if on_cuda else CpuMeter()
    recorder = StepRecorder(report_mark(folder, rank), rank, meter)
    try:
        device = _open_cuda(case, rank) if on_cuda else torch.device("cpu")
        _measure(case, folder, device, meter, recorder)
    except Exception as error:  # noqa: BLE001 - whatever it is, the row says it
        traceback.print_exc()
        return _fail(recorder, error)
    recorder.add(ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    return _OK


def _fail(recorder: StepRecorder, error: Exception) -> int:
    """Tell running out of memory from other failures."""
    message = str(error).strip() or "no message"
    if _is_out_of_memory(error):
        # `first_step`, `steady_step`: the row says `step`.
        recorder.add(oom_phase=recorder.phase.rpartition("_")[2])
        return _OUT_OF_MEMORY
    recorder.add(error=f"{type(error).__name__} in {recorder.phase}: {message.splitlines()[0]}")
    return _FAILED


def _is_out_of_memory(error: Exception) -> bool:
    """NCCL and cuBLAS say it in words of their own; the CPU allocator says that it cannot."""
    said = str(error).lower()
    words = ("out of memory", "cublas_status_alloc_failed", "can't allocate memory")
    memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return memory or (isinstance(error, RuntimeError) and any(word in said for word in words))


def _open_cuda(case: Case, rank: int) -> torch.device:
    """This rank's GPU with the allocator that the case asks for, before anything is allocated."""
    expandable = f"expandable_segments:{case['expandable_segments']}"
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = expandable
    os.environ.pop("PYTORCH_ALLOC_CONF", None)
    if not case["nccl_p2p"]:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    # The environment may have been read already, at import.
    newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # noqa: SLF001
    set_allocator = newer or getattr(torch.cuda.memory, "_set_allocator_settings", None)
    if set_allocator is not None:
        set_allocator(expandable)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    cap_bytes = case["memory_cap_bytes"]
    if cap_bytes is not None:
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total_bytes), device)
    # DeepSpeed resets the peaks in the middle of phases (runtime/utils.py, see_memory_usage).
    get_accelerator().reset_peak_memory_stats = lambda *_: None
    return device


def _measure(
    case: Case, folder: Path, device: torch.device, meter: Meter, recorder: StepRecorder
) -> None:
    # CUDA creates its context.
    torch.ones(1, device=device).add_(1)
    recorder.add(**_describe(device), context_bytes=meter.outside_bytes())
    deepspeed.init_distributed()
    # NCCL opens its channels at the first collective.
    dist.all_reduce(torch.ones(1, device=device))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    recorder.add(context_and_nccl_bytes=meter.outside_bytes())
    torch.manual_seed(0)
    with recorder.measured("model"):
        model = build_model(case, folder, device)
    params = count_params(model, trainable=False)
    adapters = None if case["lora_rank"] is None else count_params(model, trainable=True)
    recorder.add(params=params, trainable_params=adapters)
    engine = _initialize(case, model, recorder)
    batch = make_batch(model, case, device)
    for iteration in range(case["steps"]):
        _take_step(engine, batch, case, iteration, recorder)
    on_device = device.type == "cuda"
    outside_bytes = meter.outside_bytes() if on_device else None
    recorder.add(device_used_outside_allocator_bytes=outside_bytes)
    dist.barrier()


def _describe(device: torch.device) -> Values:
    loaded = {"torch": torch, "deepspeed": deepspeed, "transformers": transformers}
    versions = {name: module.__version__ for name, module in loaded.items()}
    if device.type != "cuda":
        return {"versions": versions, "gpu": "CPU rank"}
    settings = torch.cuda.memory._snapshot().get("allocator_settings", {})  # noqa: SLF001
    return {
        "versions": versions,
        "gpu": torch.cuda.get_device_name(device),
        "expandable_segments": settings.get("expandable_segments"),
    }


def _initialize(case: Case, model: Any, recorder: StepRecorder) -> Any:  # noqa: ANN401
    """The engine, and which classes stand around the optimizer."""
    with recorder.measured("init"):
        trainable = [p for p in model.parameters() if p.requires_grad]
        config = dict(case["ds_config"])
        optimizer = build_optimizer(case["optimizer"], trainable, config)
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=trainable, optimizer=optimizer, config=config
        )
    wrapper: list[str] = []
    inner = engine.optimizer
    while inner is not None and len(wrapper) <= 1:
        wrapper.append(type(inner).__name__)
        inner = getattr(inner, "optimizer", None)
    recorder.add(wrapper=wrapper)
    return engine


def _take_step(
    engine: Any,  # noqa: ANN401
    batch: dict[str, torch.Tensor],
    case: Case,
    iteration: int,
    recorder: StepRecorder,
) -> None:
    """One optimizer step; the first and the last iteration are reported."""
    names = {0: "first", case["steps"] - 1: "steady"} if case["steps"] > 1 else {0: "first"}
    name = names.get(iteration, "middle")
    began = time.perf_counter()
    for _ in range(case["accumulation_steps"]):
        with recorder.measured(f"{name}_forward"):
            loss = engine(**batch).loss
        with recorder.measured(f"{name}_backward"):
            engine.backward(loss)
        del loss
        with recorder.measured(f"{name}_step"):
            engine.step()
    recorder.report["phases"] = {
        phase: reading
        for phase, reading in recorder.report["phases"].items()
        if not phase.startswith("middle_")
    }
    seconds = round(time.perf_counter() - began, 4)
    recorder.add(step_seconds=[*recorder.report["step_seconds"], seconds])
