"""Time many settings in few processes: an engine is built once, and takes steps of every size.

The split of the batch, the length and checkpointing change between steps, not the engine; to start
and to build takes longer than the steps do. Memory is not read here: `measured/measure.py` takes a
fresh process for that. A row has the fields of its rows.
"""

import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from measured.ranks import case_folder, finish_builds, read_report, report_file, share_of
from measured.trials import OPS, PlannedTrial, Trial, TrialEnd, count_timed_steps, make_row

from zerowiz.core.machine.types import Accelerator
from zerowiz.core.strategy_types import Offload
from zerowiz.core.workload import Method

Case = Mapping[str, Any]
_SHARDED_WEIGHTS = 3
_OF_A_STEP = frozenset(
    {"id", "micro_batch", "accumulation_steps", "sequence_tokens", "gradient_checkpointing"}
)
_OF_THE_BATCH = frozenset(
    {"train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps"}
)
_POLL_S = 0.05
# Of a process that is forked from one that has loaded its libraries; its contexts, its links.
_FORK_SECONDS = 4.0
# To build a model with random weights, and to divide it; frozen weights have no states.
_BUILD_SECONDS_PER_BILLION, _FROZEN_SECONDS_PER_BILLION = 1.5, 0.5
# Host memory is pinned: of each parameter 16 bytes of states, and 2 of weights that are offloaded.
_HOST_SECONDS_PER_BILLION, _HOST_WEIGHT_SECONDS_PER_BILLION = 8.0, 1.0
# A first step is slower, as kernels are chosen; so is one whose memory is read.
_FIRST_STEP, _MEASURED_STEP = 1.0, 1.5
# To change the split, the length and checkpointing.
_SETTING_SECONDS = 0.3


def engine_of(case: Case) -> str:
    """What settings share that one engine can take; a repeat has an engine of its own."""
    again = str(case.get("id", "")).rpartition("-")[2] == "again"
    config = {k: v for k, v in (case.get("ds_config") or {}).items() if k not in _OF_THE_BATCH}
    said = {k: v for k, v in case.items() if k not in _OF_A_STEP and k != "ds_config"}
    return json.dumps([again, config, said], sort_keys=True, default=str)


def by_engine(planned: Sequence[PlannedTrial]) -> list[list[PlannedTrial]]:
    """The runs of each engine, those that take least memory first, as the first may kill others."""
    groups: dict[str, list[PlannedTrial]] = {}
    for each in planned:
        groups.setdefault(engine_of(each.as_case()), []).append(each)
    return [sorted(group, key=_tokens) for group in groups.values()]


def _tokens(planned: PlannedTrial) -> tuple[bool, int]:
    step = planned.trial.workload
    return not step.gradient_checkpointing, step.micro_batch * step.sequence_tokens


def steps_of(trial: Trial) -> tuple[int, int]:
    """How many steps are taken first, and how many are timed then at least."""
    slow = trial.stage == _SHARDED_WEIGHTS or trial.offload is not Offload.NONE
    # Rule: kernels are chosen at the first, and ZeRO-3 sees at two more what it gathers when.
    return (3, 5) if slow else (2, 5)


def start_seconds_of(trial: Trial, params: int) -> float:
    """About what it takes until the engine of a run is there."""
    billions, full = params / 1e9, trial.workload.method is Method.FULL
    each = _BUILD_SECONDS_PER_BILLION if full else _FROZEN_SECONDS_PER_BILLION
    if trial.offload is not Offload.NONE and full:
        each += _HOST_SECONDS_PER_BILLION
    elif trial.offload is Offload.ALL:
        each += _HOST_WEIGHT_SECONDS_PER_BILLION
    return _FORK_SECONDS + each * billions


def steps_seconds_of(trial: Trial, step_seconds: float) -> float:
    """About what the steps of a setting take that an engine takes beside others."""
    warm, timed = steps_of(trial)
    timed = count_timed_steps(timed, trial.most_free_steps, step_seconds)
    return _SETTING_SECONDS + (_FIRST_STEP + warm + timed) * step_seconds


def fresh_seconds_of(trial: Trial, params: int, step_seconds: float) -> float:
    """About what a run of `measured/measure.py` takes, in a process of its own."""
    timed = count_timed_steps(trial.free_steps, trial.most_free_steps, step_seconds)
    steps = _FIRST_STEP + _MEASURED_STEP * trial.steps + timed
    return start_seconds_of(trial, params) + steps * step_seconds


def _as_case(planned: PlannedTrial) -> dict[str, Any]:
    warm, timed = steps_of(planned.trial)
    return {**planned.as_case(), "steps": warm, "least_timed_steps": timed}


def sweep(
    groups: Sequence[Sequence[PlannedTrial]],
    folder: Path,
    until: float,
    cores: Sequence[int],
    *,
    builds: Sequence[subprocess.Popen[bytes]],
    cpu: bool,
) -> Iterator[dict[str, object]]:
    """Time every setting, an engine after the other, and yield the rows of each engine.

    Args:
        groups: Of `by_engine`.
        folder: Empty; gets a folder for each setting.
        until: When the last one is ended, in seconds since 1970.
        cores: Those that ranks which offload divide; may be empty.
        builds: Of ops; the first engine that needs one waits for all.
        cpu: Whether they are CPU ranks.
    """
    from measured.case import preload

    cases = [[_as_case(planned) for planned in group] for group in groups]
    preload([case for group in cases for case in group])  # type: ignore[misc]
    index = 0
    for group, here in zip(groups, cases, strict=True):
        if time.time() >= until:
            return
        if group[0].trial.kernel in OPS:
            finish_builds(builds)
        places = [case_folder(folder, index + place) for place in range(len(group))]
        index += len(group)
        for place in places:
            place.mkdir(parents=True)
        began = time.monotonic()
        _fork_ranks(here, places, until, cores)
        sys.stderr.write(f"{len(group)} settings in {time.monotonic() - began:.1f} s\n")
        for planned, case, place in zip(group, here, places, strict=True):
            row = _row(planned, case, place, cpu=cpu)
            if row is not None:
                yield row


def _row(planned: PlannedTrial, case: Case, place: Path, *, cpu: bool) -> dict[str, object] | None:
    reports = [read_report(report_file(place, rank)) for rank in range(case["gpus"])]
    ends = [
        TrialEnd(rank=rank, report=report, status=0, killed=None)
        for rank, report in enumerate(reports)
        if report is not None
    ]
    if len(ends) < len(reports):
        return None
    row = make_row(planned, ends, Accelerator.CPU if cpu else Accelerator.CUDA)
    return {**row, "steps": case["steps"], "timed_steps": case["least_timed_steps"]}


def _fork_ranks(
    cases: Sequence[Case], places: Sequence[Path], until: float, cores: Sequence[int]
) -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
    children = set()
    for rank in range(cases[0]["gpus"]):
        child = os.fork()
        if child == 0:
            _run_child(partial(_serve, cases, places, rank, port, until, cores))
        children.add(child)
    failed_at = None
    while children:
        for child in tuple(children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                children.remove(child)
                failed_at = failed_at or (time.time() if status else None)
        if time.time() > until or (failed_at is not None and time.time() > failed_at + 3):
            for child in children:
                os.kill(child, 9)
                os.waitpid(child, 0)
            return
        time.sleep(_POLL_S)


def _run_child(serve: Callable[[], None]) -> None:
    code = 1
    try:
        serve()
        code = 0
    except BaseException:  # noqa: BLE001 - a child must not unwind into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _serve(
    cases: Sequence[Any],
    places: Sequence[Path],
    rank: int,
    port: int,
    until: float,
    cores: Sequence[int],
) -> None:
    """Build the engine, and time each setting with it, as one rank."""
    first = cases[0]
    ranks = str(first["gpus"])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": ranks}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"LOCAL_WORLD_SIZE": ranks, "LOCAL_SIZE": ranks}

    import deepspeed
    import torch
    from measured.case import describe, open_cuda
    from measured.loops import CpuMeter, CudaMeter, StepRecorder, initialize
    from measured.models import build_model

    own = share_of(cores, first, rank)
    if own:
        os.sched_setaffinity(0, own)
        torch.set_num_threads(len(own))
    on_cuda = torch.cuda.is_available()
    device = open_cuda(first, rank) if on_cuda else torch.device("cpu")
    meter = CudaMeter() if on_cuda else CpuMeter()
    recorder = StepRecorder(report_file(places[0], rank), meter)
    with _reported(recorder):
        deepspeed.init_distributed()
        torch.manual_seed(0)
        plain: Any = {**first, "gradient_checkpointing": False}
        model = build_model(plain, places[0], device)
        engine = initialize(first, model, recorder)
    wrapper = recorder.report["wrapper"]
    for case, place in zip(cases, places, strict=True):
        recorder = StepRecorder(report_file(place, rank), meter)
        recorder.add(**describe(device))
        recorder.add(wrapper=wrapper)
        with _reported(recorder):
            if case["gradient_checkpointing"]:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            else:
                model.gradient_checkpointing_disable()
            _split_batch(engine, case)
            _time(engine, model, case, device, recorder, meter, until)
        if on_cuda:
            torch.cuda.empty_cache()


@contextmanager
def _reported(recorder: Any) -> Iterator[None]:
    """Report an error: either running out of memory, or another failure."""
    from measured.case import is_out_of_memory

    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            recorder.add(oom_phase=recorder.phase_name)
        else:
            recorder.add(error=f"{type(error).__name__}: {error}".splitlines()[0])
        raise


def _split_batch(engine: Any, case: Any) -> None:
    """Let the engine take another micro-batch and accumulation, from the begin of a step on."""
    micro_batch, steps = case["micro_batch"], case["accumulation_steps"]
    engine.set_train_micro_batch_size(micro_batch)
    engine.set_train_batch_size(micro_batch * steps * case["gpus"])
    # It counts micro-steps from its own begin (runtime/engine.py, is_gradient_accumulation_boundary)
    # and ZeRO's optimizers keep the accumulation that they were made with.
    engine.micro_steps = 0
    if hasattr(engine.optimizer, "gradient_accumulation_steps"):
        engine.optimizer.gradient_accumulation_steps = steps


def _time(
    engine: Any,
    model: Any,
    case: Any,
    device: Any,
    recorder: Any,
    meter: Any,
    until: float,
) -> None:
    """Take the steps of a setting, first some that are waited for."""
    import torch
    from measured.loops import TimingPass, take_step
    from measured.models import make_batch

    batch, taken = make_batch(model, case, device), engine.global_steps
    for _ in range(case["steps"]):
        began = time.perf_counter()
        take_step(engine, batch, case)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = round(time.perf_counter() - began, 4)
        recorder.add(step_seconds=[*recorder.report["step_seconds"], seconds])
    timing = TimingPass(case, device, meter, recorder, until)
    steps = timing.begin()
    for _ in range(steps):
        take_step(engine, batch, case)
        timing.end_step()
    timing.end()
    if engine.global_steps - taken != case["steps"] + steps:
        raise RuntimeError(f"the engine took {engine.global_steps - taken} steps")
    recorder.add(ok=True)
