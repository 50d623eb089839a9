"""Time the optimizer steps of a person's own script, and end it after so many; then it is training.

`rank.py` starts this file by its path, with the training's own words after it, where an environment
variable says how many steps. The script stays as it is: the engine's `step` is wrapped once
DeepSpeed has been imported, whoever imports it.
"""

import json
import os
import resource
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

# emit/own_script.py says both.
STEPS_VARIABLE, FOLDER_VARIABLE = "ZEROWIZ_MEASURED_STEPS", "ZEROWIZ_MEASURED_FOLDER"
_ENGINE = "deepspeed.runtime.engine"


class StepCounter:
    """Counts the optimizer steps of the first engine that takes one, and notes when each ended.

    Args:
        steps: After so many the training is ended.
        path: Where the report is written, after each step: a script may end by itself, in any way.
    """

    def __init__(self, steps: int, path: Path) -> None:
        self._steps = steps
        self._path = path
        self._engine: Any = None
        self._count = 0
        self._moments: list[Any] = []
        self._seconds: list[float] = []

    def count(self, engine: Any) -> None:  # noqa: ANN401 - untyped library
        """An optimizer step of this engine has been queued."""
        self._engine = engine if self._engine is None else self._engine
        if engine is not self._engine:
            return
        self._count += 1
        self._moments.append(self._now())
        if self._count >= self._steps:
            self._end()
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
            one, other, *_ = self._moments
            if self._on_gpu and not other.query():
                return
            seconds = one.elapsed_time(other) / 1000 if self._on_gpu else other - one
            self._seconds.append(round(seconds, 6))
            del self._moments[0]

    def _report(self) -> None:
        """Write what was measured, in one step."""
        import torch  # noqa: PLC0415 - the script has loaded it

        self._read_moments()
        engine = self._engine
        content = {
            "steps": self._count,
            "timed_step_seconds": self._seconds,
            "peak_bytes": torch.cuda.max_memory_allocated() if self._on_gpu else None,
            "host_peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "stage": engine.zero_optimization_stage(),
            "micro_batch": engine.train_micro_batch_size_per_gpu(),
            "accumulation_steps": engine.gradient_accumulation_steps(),
        }
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(content), encoding="utf-8")
        partial.replace(self._path)

    def _end(self) -> NoReturn:
        """End the training here: nothing that it would do after its steps is done."""
        import torch  # noqa: PLC0415 - the script has loaded it
        from deepspeed import comm  # noqa: PLC0415 - the script has loaded it

        if self._on_gpu:
            torch.cuda.synchronize()
        self._report()
        with suppress(Exception):
            # No rank breaks the connections of one that still writes.
            comm.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class EngineHook(MetaPathFinder, Loader):
    """Wraps the engine's `step` when its module is imported."""

    def __init__(self, counter: StepCounter) -> None:
        self._counter = counter
        self._loader: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the engine's module, loaded by this hook; None for all others."""
        if fullname != _ENGINE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then wrap the method."""
        self._loader.exec_module(module)
        engine: Any = module.DeepSpeedEngine
        engine.step = counted(engine.step, self._counter)


def counted(step: Callable[..., Any], counter: StepCounter) -> Callable[..., Any]:
    """The engine's `step`, which also counts; micro-steps that accumulate are none."""

    def counting(engine: Any, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - untyped library
        before = engine.global_steps
        result = step(engine, *args, **named)
        if engine.global_steps != before:
            counter.count(engine)
        return result

    return counting


def main() -> None:
    """Place the hook, then run the script, or `-m` and a module."""
    path = Path(os.environ[FOLDER_VARIABLE]) / f"rank-{os.environ.get('RANK', '0')}.json"
    counter = StepCounter(int(os.environ[STEPS_VARIABLE]), path)
    sys.meta_path.insert(0, EngineHook(counter))
    # By its path, as this file is: zerowiz need not be installed where the ranks run.
    beside = runpy.run_path(str(Path(__file__).with_name("accelerate_cpu.py")))
    beside["run_words"](sys.argv[1:])


if __name__ == "__main__":
    main()
