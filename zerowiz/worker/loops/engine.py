"""Train a case by a plain loop over DeepSpeed's engine."""

import time
from typing import Any

import deepspeed
import torch

from zerowiz.worker.batch_files import Case
from zerowiz.worker.loops.recorder import StepRecorder, name_iteration
from zerowiz.worker.loops.timing import TimingPass
from zerowiz.worker.models import make_batch
from zerowiz.worker.optimizers import build_optimizer


def train_by_engine(
    case: Case,
    model: Any,  # noqa: ANN401 - untyped libraries
    device: torch.device,
    recorder: StepRecorder,
    timing: TimingPass,
) -> None:
    """Initialize, and take every optimizer step of the case on one batch."""
    engine = initialize(case, model, recorder)
    batch = make_batch(model, case, device)
    for iteration in range(case["steps"]):
        _measure_step(engine, batch, case, iteration, recorder)
    steps = timing.begin()
    for _ in range(steps):
        take_step(engine, batch, case)
        timing.end_step()
    if steps:
        timing.end()


def initialize(case: Case, model: Any, recorder: StepRecorder) -> Any:  # noqa: ANN401
    """The engine of DeepSpeed with the model in it."""
    with recorder.measured("init"):
        trainable = [p for p in model.parameters() if p.requires_grad]
        config = dict(case["ds_config"])
        optimizer = build_optimizer(case["optimizer"], trainable, config)
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=trainable, optimizer=optimizer, config=config
        )
    recorder.describe_optimizer(engine.optimizer)
    return engine


def take_step(
    engine: Any,  # noqa: ANN401
    batch: dict[str, torch.Tensor],
    case: Case,
) -> None:
    """Take one optimizer step, as a script does."""
    for _ in range(case["accumulation_steps"]):
        loss = engine(**batch).loss
        engine.backward(loss)
        del loss
        engine.step()


def _measure_step(
    engine: Any,  # noqa: ANN401
    batch: dict[str, torch.Tensor],
    case: Case,
    iteration: int,
    recorder: StepRecorder,
) -> None:
    """Take one optimizer step, and measure each of its phases."""
    name = name_iteration(iteration, case["steps"])
    began = time.perf_counter()
    for _ in range(case["accumulation_steps"]):
        with recorder.measured("forward", name):
            loss = engine(**batch).loss
        with recorder.measured("backward", name):
            engine.backward(loss)
        del loss
        with recorder.measured("step", name):
            engine.step()
    recorder.end_iteration(time.perf_counter() - began)
