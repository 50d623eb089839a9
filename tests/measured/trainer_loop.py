"""Train a case by the Trainer of transformers, with the optimizer and the groups that it makes.

Its backward takes the step too, so the engine's own methods are measured where it calls them.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from accelerate import ParallelismConfig
from accelerate.utils import DeepSpeedSequenceParallelConfig
from measured.loops import StepRecorder, TimingPass, name_iteration
from measured.models import ATTENTION, in_shards, make_batch
from measured.ranks import Case, Phase
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# Small enough that a model does not diverge on random tokens within three steps.
_RATE = 1e-5
# By the names that measured rows use. DeepSpeed's own are not among them: a section of the config
# names FusedAdam, and Accelerate replaces AdamW by the CPU's under offload.
OPTIMIZERS = {
    "torch AdamW fused=True": "adamw_torch_fused",
    "torch AdamW foreach=True": "adamw_torch",
    "torch AdamW via config (torch_adam)": "adamw_torch",
    "FusedAdam": "adamw_torch",
    "DeepSpeedCPUAdam": "adamw_torch",
    "AdamW8bit": "adamw_bnb_8bit",
    "Adafactor": "adafactor",
    "torch SGD": "sgd",
}
_Examples = list[dict[str, torch.Tensor]]


def train_by_trainer(
    case: Case,
    folder: Path,
    device: torch.device,
    recorder: StepRecorder,
    timing: TimingPass,
    build: Callable[[], Any],
) -> None:
    """Train as a script with the Trainer does.

    Args:
        case: What is run.
        folder: Of the case.
        device: Of this rank.
        recorder: Gets the phases.
        timing: Gets the steps after those whose phases are measured.
        build: Builds the model, once the arguments say whether it is built in shards.
    """
    if in_shards(case):
        arguments = _arguments(case, folder, device)
        model = build()
    else:
        model = build()
        arguments = _arguments(case, folder, device)
    with ExitStack() as init:
        init.enter_context(recorder.measured("init"))
        trainer = _MeasuredTrainer(
            model=model, args=arguments, train_dataset=_examples(case, model)
        )
        # A batch for each rank: what is evaluated has its samples from training.
        sequences = case["gpus"] * case["eval_batch"]
        trainer.eval_dataset = list(islice(cycle(trainer.train_dataset), sequences))
        trainer.measure(case, recorder, timing, init)
        trainer.train()


class _MeasuredTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose phases are measured in its first steps, and whose others run freely."""

    def measure(
        self, case: Case, recorder: StepRecorder, timing: TimingPass, init: ExitStack
    ) -> None:
        """Say where the phases are reported.

        Args:
            case: What is run.
            recorder: Gets the phases.
            timing: Gets the steps that follow.
            init: Is closed when the engine stands.
        """
        self._recorder, self._init, self._steps = recorder, init, case["steps"]
        self._losses: list[torch.Tensor] = []
        self._norms: list[float] = []
        self.add_callback(_Steps(case["steps"], self, recorder, timing))

    def engine_stands(self) -> None:
        """End the phase of building, and measure what the engine does from here on."""
        self._init.close()
        engine = self.model_wrapped
        self._recorder.describe_optimizer(engine.optimizer)
        engine.backward = self._measured("backward", engine.backward)
        engine.step = self._measured("step", engine.step)

    def _measured(self, phase: Phase, run: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: object, **kwargs: object) -> Any:
            if self.state.global_step >= self._steps:
                return run(*args, **kwargs)
            name = name_iteration(self.state.global_step, self._steps)
            with self._recorder.measured(phase, name):
                return run(*args, **kwargs)

        return measured

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The forward pass."""
        loss = self._measured("forward", super().compute_loss)(*args, **kwargs)
        if self.state.global_step < self._steps:
            self._losses.append(loss.detach())
        return loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """After the last step, where the case evaluates."""
        with self._recorder.measured("evaluate"):
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        return metrics

    def note_norm(self) -> None:
        """Keep the norm of the gradients that the step took, as DeepSpeed clips it."""
        self._norms.append(float(self.model_wrapped.get_global_grad_norm()))

    def report_losses(self) -> None:
        """Say the loss of each measured micro-step, of all ranks together, and each step's norm."""
        losses = torch.stack(self._losses).float()
        torch.distributed.all_reduce(losses)
        losses /= torch.distributed.get_world_size()
        self._recorder.add(losses=losses.tolist(), gradient_norms=self._norms)


class _Steps(TrainerCallback):  # type: ignore[misc]
    """Follows the steps of a Trainer: those that are measured, then those that are timed."""

    def __init__(
        self,
        measured_steps: int,
        trainer: _MeasuredTrainer,
        recorder: StepRecorder,
        timing: TimingPass,
    ) -> None:
        self._measured, self._last = measured_steps, measured_steps
        self._trainer, self._recorder, self._timing = trainer, recorder, timing
        self._began = 0.0

    def on_train_begin(self, *_: object, **__: object) -> None:
        """Everything is built."""
        self._trainer.engine_stands()

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Before the first micro-step of an optimizer step."""
        self._began = time.perf_counter()

    def on_step_end(
        self, _: TrainingArguments, state: TrainerState, control: TrainerControl, **__: object
    ) -> None:
        """The optimizer step is taken, or queued where nothing waits for it."""
        if state.global_step > self._measured:
            self._timing.end_step()
        else:
            self._recorder.end_iteration(time.perf_counter() - self._began)
            self._trainer.note_norm()
        if state.global_step == self._measured:
            self._trainer.report_losses()
            self._last += self._timing.begin()
        elif state.global_step == self._last:
            self._timing.end()
        control.should_training_stop = state.global_step >= self._last
        control.should_evaluate = control.should_training_stop and bool(self._trainer.eval_dataset)


def _arguments(case: Case, folder: Path, device: torch.device) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder / "out"),
        deepspeed=dict(case["ds_config"]),
        max_steps=case["steps"] + case["most_timed_steps"],
        per_device_train_batch_size=case["micro_batch"],
        per_device_eval_batch_size=max(1, case["eval_batch"]),
        prediction_loss_only=True,
        gradient_accumulation_steps=case["accumulation_steps"],
        gradient_checkpointing=case["gradient_checkpointing"],
        bf16=case["precision"] == "bf16",
        fp16=case["precision"] == "fp16",
        optim=OPTIMIZERS[case["optimizer"]],
        learning_rate=_RATE,
        weight_decay=0.01,
        remove_unused_columns=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=device.type == "cpu",
        parallelism_config=_shared(case),
    )


def _shared(case: Case) -> ParallelismConfig | None:
    """What makes ranks share sequences."""
    ranks = case["sequence_parallel"]
    if ranks == 1:
        return None
    handler = DeepSpeedSequenceParallelConfig(
        sp_seq_length_is_variable=True,
        sp_attn_implementation=ATTENTION[case["attention"]] or "sdpa",
    )
    return ParallelismConfig(
        sp_size=ranks,
        sp_backend="deepspeed",
        dp_shard_size=case["gpus"] // ranks,
        sp_handler=handler,
    )


def _examples(case: Case, model: Any) -> _Examples:
    """As many random sequences as the job takes, each its own labels.

    The steps that are timed take those of the measured steps again: the host holds no more of them.
    """
    example_case: Case = {**case, "micro_batch": 1}
    groups = case["gpus"] // case["sequence_parallel"]
    a_step = groups * case["micro_batch"] * case["accumulation_steps"]
    batches = (
        make_batch(model, example_case, torch.device("cpu")) for _ in range(a_step * case["steps"])
    )
    examples = [{name: values[0] for name, values in batch.items()} for batch in batches]
    if case["sequence_parallel"] > 1:
        positions = torch.arange(case["sequence_tokens"])
        examples = [{**example, "position_ids": positions} for example in examples]
    return list(islice(cycle(examples), a_step * (case["steps"] + case["most_timed_steps"])))
