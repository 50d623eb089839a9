"""Time the optimizer steps of a person's own script, and read its peak memory, while it trains.

`rank.py` starts this file by its path, with the training's own words after it, in every supervised
job, and in rank 0 where a person looks on. The script stays as it is: the engine's `step` is
wrapped once DeepSpeed has been imported, whoever imports it. `zerowiz measure` also ends the
training after so many steps; otherwise nothing that fails here may end it, and nothing waits for
the GPU.
"""

import atexit
import json
import os
import resource
import runpy
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

# emit/job.py: after how many optimizer steps the training is ended, if it is.
STEPS_VARIABLE = "ZEROWIZ_MEASURED_STEPS"
# emit/processes.py: the folder of the attempt, and in it that of these reports.
ATTEMPT_VARIABLE, MEASURED_FOLDER = "ZEROWIZ_ATTEMPT", "measured"
# first_steps.py: what a person who looks on is told.
PROGRESS_VARIABLE = "ZEROWIZ_PROGRESS"
_ENGINE = "deepspeed.runtime.engine"
# Of a long job the last ones count.
_KEPT_STEPS = 100
# Every one of the first steps is reported, later ones so often.
_FIRST_STEPS, _REPORT_S = 16, 1.0
# What DeepSpeed allocates and compiles at its first step is there by then.
_SHOWN_STEP = 4
# core/workload.py: what gathers them (PF117).
_EMPTY = (
    "At ZeRO stage 3 each rank has a shard of the weights. "
    "Call one of these on all ranks instead: `trainer.save_model(...)` of the Trainer; "
    "`unwrapped.save_pretrained(..., is_main_process=accelerator.is_main_process, "
    "state_dict=accelerator.get_state_dict(model))` of Accelerate; `engine.save_16bit_model(...)` "
    "or `engine.save_checkpoint(...)` of DeepSpeed"
)


class StepCounter:
    """Counts the optimizer steps of the first engine that takes one, and notes when each ended.

    Args:
        path: Where the report is written, while the script trains: it may end in any way; None
            where nobody supervises it.
        steps: After so many the training is ended; None where it ends by itself.
        first_steps: What a person sees of them (first_steps.py); None where nobody looks on.
    """

    def __init__(self, path: Path | None, steps: int | None, first_steps: Any = None) -> None:  # noqa: ANN401 - of a file that is run
        self._steps = steps
        self._path = path
        self._first_steps = first_steps
        self._engine: Any = None
        self._count = 0
        self._report_at = 0.0
        self._outside_bytes: int | None = None
        self._moments: deque[Any] = deque(maxlen=_KEPT_STEPS)
        self._seconds: deque[float] = deque(maxlen=_KEPT_STEPS)

    def note_model(self, model: Any) -> None:  # noqa: ANN401 - untyped library
        """The first engine is about to be built of this model: what the process holds beside it."""
        self.waits_for("the first batch")
        if self._outside_bytes is None:
            self._outside_bytes = resident_bytes() - tensor_bytes(model)

    def waits_for(self, what: str) -> None:
        """What the next step waits for."""
        if self._first_steps is not None:
            self._first_steps.waits_for = what

    def count(self, engine: Any) -> None:  # noqa: ANN401 - untyped library
        """An optimizer step of this engine has been queued."""
        if self._engine is None:
            self._engine = engine
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                atexit.register(self._report_last)
        if engine is not self._engine:
            return
        self._count += 1
        self._moments.append(self._now())
        if self._first_steps is not None:
            self._tell()
        if self._steps is not None and self._count >= self._steps:
            self._end()
        if self._count <= _FIRST_STEPS or time.monotonic() >= self._report_at:
            self._report()
            self._report_at = time.monotonic() + _REPORT_S

    def _tell(self) -> None:
        """Tell the person who looks on that the first step has ended, then what one takes."""
        self._read_moments()
        if self._count == 1:
            self._first_steps.end()
        elif self._count >= _SHOWN_STEP and self._seconds:
            self._first_steps.show(self._count, self._seconds[-1], self._peak_bytes)
            self._first_steps = None

    @property
    def _peak_bytes(self) -> int:
        """Of torch's allocator; of a CPU rank, without Python and its libraries."""
        import torch  # noqa: PLC0415 - the script has loaded it

        if self._on_gpu:
            return int(torch.cuda.max_memory_allocated())
        return peak_resident_bytes() - (self._outside_bytes or 0)

    def _report_last(self) -> None:
        """Report once more when Python ends."""
        with suppress(Exception):
            self._report()

    @property
    def _on_gpu(self) -> bool:
        return bool(self._engine.device.type == "cuda")

    def _now(self) -> Any:  # noqa: ANN401 - an event of the GPU, or seconds
        import torch  # noqa: PLC0415 - the script has loaded it

        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read_moments(self) -> None:
        """Read what has come so far, without waiting for the GPU."""
        while len(self._moments) > 1:
            start, end = self._moments[0], self._moments[1]
            if self._on_gpu and not end.query():
                return
            seconds = start.elapsed_time(end) / 1000 if self._on_gpu else end - start
            self._seconds.append(round(seconds, 6))
            self._moments.popleft()

    def _report(self) -> None:
        """Write what was measured, in one step."""
        if self._path is None:
            return
        import torch  # noqa: PLC0415 - the script has loaded it

        self._read_moments()
        engine = self._engine
        content = {
            "steps": self._count,
            "timed_step_seconds": [*self._seconds],
            "peak_bytes": self._peak_bytes,
            "allocator_retries": torch.cuda.memory_stats()["num_alloc_retries"]
            if self._on_gpu
            else None,
            "outside_bytes": None if self._on_gpu else self._outside_bytes,
            "host_peak_rss_bytes": peak_resident_bytes(),
            "stage": engine.zero_optimization_stage(),
            "micro_batch": engine.train_micro_batch_size_per_gpu(),
            "accumulation_steps": engine.gradient_accumulation_steps(),
        }
        partial = self._path.with_suffix(".partial")
        try:
            partial.write_text(json.dumps(content), encoding="utf-8")
            partial.replace(self._path)
        finally:
            partial.unlink(missing_ok=True)

    def _end(self) -> NoReturn:
        """End the training here: nothing that it would do after its steps is done."""
        import torch  # noqa: PLC0415 - the script has loaded it
        from deepspeed import comm  # noqa: PLC0415 - the script has loaded it

        if self._on_gpu:
            torch.cuda.synchronize()
        self._report_last()
        with suppress(Exception):
            # No rank breaks the connections of one that still writes.
            comm.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def peak_resident_bytes() -> int:
    """The most memory that was resident (getrusage(2): in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    """The memory that is resident now (proc(5), statm: the second number, in pages)."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def tensor_bytes(model: Any) -> int:  # noqa: ANN401 - untyped library
    """The parameters and buffers of a model; of what ZeRO-3 splits, the rank's share."""
    held = (*model.parameters(), *model.buffers())
    shares = (getattr(tensor, "ds_tensor", tensor) for tensor in held)
    return sum(share.numel() * share.element_size() for share in shares)


class EngineHook(MetaPathFinder):
    """Wraps the engine's `step` when its module is imported, whoever finds the module.

    Args:
        counter: Counts the steps.
    """

    def __init__(self, counter: StepCounter) -> None:
        self._counter = counter

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the engine's module, as the other finders have it; None for all others."""
        if fullname != _ENGINE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._wrap_after_load(spec.loader)
        return spec

    def _wrap_after_load(self, loader: Any) -> None:  # noqa: ANN401 - any loader
        load = loader.exec_module

        def exec_module(module: Any) -> None:  # noqa: ANN401 - untyped library
            load(module)
            self._counter.waits_for("loading the model")
            engine = module.DeepSpeedEngine
            engine.__init__ = noted(engine.__init__, self._counter, set())
            engine.step = counted(engine.step, self._counter)

        loader.exec_module = exec_module


def noted(build: Callable[..., Any], counter: StepCounter, split: set[str]) -> Callable[..., Any]:
    """The engine's `__init__`, before which the model is noted, and after it what ranks share."""

    @wraps(build)
    def noting(engine: Any, *args: Any, **named: Any) -> None:  # noqa: ANN401 - untyped library
        # deepspeed 0.19.8, __init__.py, initialize: it passes the model by its name.
        with suppress(Exception):
            counter.note_model(named["model"])
        build(engine, *args, **named)
        with suppress(Exception):
            refuse_empty(engine.module, split)

    return noting


def refuse_empty(model: Any, split: set[str]) -> None:  # noqa: ANN401 - untyped library
    """Refuse from now on to write a weight of this model of which the rank has a shard alone.

    Args:
        model: A module.
        split: Such weights of the models before it; those of this one are added.
    """
    import torch  # noqa: PLC0415 - the script has loaded it

    held = model.named_parameters()
    names = [name.split(".") for name, weight in held if getattr(weight, "ds_numel", 0)]
    before = len(split)
    # A part of the model may be what is saved.
    split.update(".".join(name[start:]) for name in names for start in range(len(name)))
    # A second engine adds its weights; what saves stays called by DeepSpeed itself.
    if split and not before:
        torch.save = refusing(torch.save, split)
        from safetensors import torch as files  # noqa: PLC0415 - not everybody has it

        # Other modules have `save_file` by name; this is what it calls (0.8).
        files.serialize_file = refusing(files.serialize_file, split)  # type: ignore[attr-defined]


def refusing(save: Callable[..., Any], split: set[str]) -> Callable[..., Any]:
    """What writes tensors by their names, unless weights among them are empty.

    Args:
        save: It takes the tensors first.
        split: The weights that ranks share, by their names.
    """

    @wraps(save)
    def saving(content: Any, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - untyped library
        caller = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - who saves
        # DeepSpeed's checkpoint has the shards in other files.
        empty = [] if caller.startswith("deepspeed.") else [*empty_weights(content, split)]
        if empty:
            which = f"{len(empty)} of them, `{empty[0]}` first"
            raise RuntimeError(f"zerowiz does not save weights that are empty ({which}). {_EMPTY}")
        return save(content, *args, **named)

    return saving


def empty_weights(content: Any, split: set[str]) -> Iterator[str]:  # noqa: ANN401 - what is saved
    """The names of the weights in what is saved that have no element, but should have some."""
    for name, value in content.items() if isinstance(content, Mapping) else ():
        # Older releases of safetensors pass a dict for each tensor.
        shape = value.get("shape") if isinstance(value, Mapping) else getattr(value, "shape", None)
        if str(name).removeprefix("module.") in split and 0 in (shape or ()):
            yield name
        else:
            yield from empty_weights(value, split)


def counted(step: Callable[..., Any], counter: StepCounter) -> Callable[..., Any]:
    """The engine's `step`, which also counts; micro-steps that accumulate are none."""

    @wraps(step)
    def counting(engine: Any, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - untyped library
        before = engine.global_steps
        result = step(engine, *args, **named)
        if engine.global_steps != before:
            # A full disk, say, is no reason to end a training.
            with suppress(Exception):
                counter.count(engine)
        return result

    return counting


def main() -> None:
    """Place the hook, then run the script, or `-m` and a module."""
    folder, steps = os.environ.get(ATTEMPT_VARIABLE), os.environ.get(STEPS_VARIABLE)
    rank, planned = os.environ.get("RANK", "0"), os.environ.get(PROGRESS_VARIABLE)
    path = None if folder is None else Path(folder) / MEASURED_FOLDER / f"rank-{rank}.json"
    # By their paths, as this file is: zerowiz need not be installed where the ranks run.
    shown = beside("first_steps.py")["FirstSteps"](planned) if planned and rank == "0" else None
    counter = StepCounter(path, None if steps is None else int(steps), shown)
    sys.meta_path.insert(0, EngineHook(counter))
    beside("prepared_script.py")["run_words"](sys.argv[1:])


def beside(name: str) -> dict[str, Any]:
    """What a file beside this one defines."""
    return runpy.run_path(str(Path(__file__).with_name(name)))


if __name__ == "__main__":
    main()
