"""Train a small causal language model with the Hugging Face Trainer.

Run it with `deepspeed train_hf.py --deepspeed ds_config.json --bf16`, or without DeepSpeed with
`python train_hf.py`; every option of TrainingArguments works here. Leave `--bf16` out on a CPU
that emulates it (`zerowiz machine --accelerator cpu` says so): it is many times slower.
Copy it with `portable_checkpoint/`, and put your own model and data in `build_model` and
`read_windows`. With `--do_eval` it evaluates once it has trained, whole sequences on each rank.
"""

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import deepspeed
import torch
from portable_checkpoint import Loaded, check_savable, load, newest, save
from portable_checkpoint.signals import SaveSignals
from portable_checkpoint.state import restore_randoms
from torch import distributed as dist
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import SaveStrategy, get_last_checkpoint

HERE = Path(__file__).parent


@dataclass
class ScriptArguments:
    """What this script adds to TrainingArguments."""

    model_config: str = str(HERE / "model")
    """config.json or its folder"""
    corpus: Path = HERE / "corpus.txt"
    seq_len: int = 128
    resume: bool = False
    """go on from the newest checkpoint in the output folder, whichever ZeRO stage it is of"""
    save_on_signal: bool = False
    """SIGUSR1: save at the next step; SIGTERM: save and end"""
    memory_fraction: float | None = None
    """of each GPU, to try things out"""


@dataclass
class Arguments(TrainingArguments):
    """TrainingArguments with defaults that suit this small model."""

    output_dir: str = "out"
    max_steps: int = 30
    per_device_train_batch_size: int = 4
    learning_rate: float = 1e-3
    lr_scheduler_type: str = "constant"
    logging_steps: float = 5
    logging_first_step: bool = True
    save_total_limit: int | None = 2
    prediction_loss_only: bool = True
    report_to: str = "none"
    disable_tqdm: bool = True


class PrintLoss(TrainerCallback):
    """Print the loss in one plain line."""

    def on_log(
        self,
        _args: TrainingArguments,
        state: TrainerState,
        _control: TrainerControl,
        logs: dict[str, float],
        **_: object,
    ) -> None:
        """Rank 0 tells the loss since the line before."""
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step}  loss {float(logs['loss']):.3f}", flush=True)


class SaveWhenAsked(TrainerCallback):
    """Save, or save and stop, after the step in which a rank was asked to."""

    def __init__(self) -> None:
        self.signals = SaveSignals()
        self.status = 0

    def on_step_end(
        self,
        args: TrainingArguments,
        _state: TrainerState,
        control: TrainerControl,
        **_: object,
    ) -> None:
        """All ranks see the same."""
        asked = self.signals.agreed(args.device)
        control.should_save = control.should_save or asked > 0
        if asked == signal.SIGTERM:
            control.should_training_stop = True
            self.status = 128 + asked


class PortableTrainer(Trainer):
    """A Trainer whose checkpoints load at every ZeRO stage; without DeepSpeed it is as it was.

    The three methods are those of transformers 5.8 to 5.23. Every node must see the output folder.
    """

    loaded = Loaded()

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        """Write weights, optimizer and the Trainer's own state as one folder, whole or not."""
        if not self.is_deepspeed_enabled:
            super()._save_checkpoint(model, trial)
            return
        self.store_flos()
        state = json.dumps(asdict(self.state), indent=2)
        save(
            self.deepspeed,
            Path(self.args.output_dir),
            step=self.state.global_step,
            keep=self.args.save_total_limit or 0,
            extra={"schedule": self.lr_scheduler.state_dict()},
            texts={"config.json": self.model.config.to_json_string(), "trainer_state.json": state},
        )

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: object, resume_from_checkpoint: str | None
    ) -> tuple[object, object]:
        """Load once the engine is built."""
        if not self.is_deepspeed_enabled:
            return super()._prepare_for_training(
                max_steps, train_dataloader, resume_from_checkpoint
            )
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        asks = any(isinstance(each, SaveWhenAsked) for each in self.callback_handler.callbacks)
        if asks or self.args.save_strategy != SaveStrategy.NO:
            check_savable(self.deepspeed)
        if resume_from_checkpoint is None:
            return prepared
        self.loaded = load(self.deepspeed, Path(resume_from_checkpoint))
        self.lr_scheduler.load_state_dict(self.loaded.extra["schedule"])
        return prepared

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Once the data that was seen is skipped."""
        if self.is_deepspeed_enabled:
            restore_randoms(self.loaded.randoms)
        else:
            super()._load_rng_state(checkpoint)


Windows = list[dict[str, torch.Tensor]]


def read_windows(path: Path, seq_len: int) -> tuple[Windows, Windows]:
    """The corpus as bytes, one token each, in windows: what to train on, and the last tenth."""
    windows = torch.tensor(list(path.read_bytes())).split(seq_len)[:-1]
    # Ranks that share each sequence need to know where in it their part stands.
    positions = torch.arange(seq_len)
    examples = [{"input_ids": w, "labels": w, "position_ids": positions} for w in windows]
    split = len(examples) * 9 // 10
    if split == 0:
        sys.exit(f"{path} is too short for --seq_len {seq_len}")
    return examples[:split], examples[split:]


def build_model(script: ScriptArguments, args: TrainingArguments) -> PreTrainedModel:
    """Build the model from its config.json with fresh weights; at stage 3 already sharded.

    DeepSpeed keeps an fp32 master copy of its own, so its ranks start from 16-bit weights; the
    Trainer's autocast alone needs fp32 ones.
    """
    dtype = torch.float32
    if args.deepspeed_plugin is not None and args.bf16:
        dtype = torch.bfloat16
    elif args.deepspeed_plugin is not None and args.fp16:
        dtype = torch.float16
    config = AutoConfig.from_pretrained(script.model_config, use_cache=False)
    # Some billion random numbers take a CPU minutes, and a GPU none.
    with args.device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def drop_shared_memory() -> None:
    """Remove what DeepSpeed's CPU op leaves in /dev/shm: 69 MB a rank (csrc/cpu/comm/shm.cpp)."""
    port, rank = os.environ["MASTER_PORT"], os.environ["RANK"]
    for buffer in Path("/dev/shm").glob(
        f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_{rank}"
    ):
        buffer.unlink(missing_ok=True)


def leave(device: torch.device, status: int) -> None:
    """End this rank once every rank has done its work."""
    if not dist.is_initialized():
        sys.exit(status)
    dist.barrier()
    if device.type == "cpu":
        drop_shared_memory()
        # gloo's thread wants the interpreter lock while Python finalises: one run in ten aborts
        # there ("terminate called without an active exception") with all its work done and saved.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    dist.destroy_process_group()
    sys.exit(status)


def main() -> None:
    """Train, save, evaluate if asked."""
    # The arguments come first: they set DeepSpeed up, and stage 3 must know it before the model.
    script, args = HfArgumentParser((ScriptArguments, Arguments)).parse_args_into_dataclasses()
    torch.manual_seed(args.seed)
    if script.memory_fraction and args.device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(script.memory_fraction, args.device)
    if args.device.type == "cpu" and dist.is_initialized():
        # The Trainer opens torch's groups alone; ranks that share sequences ask DeepSpeed for its.
        deepspeed.init_distributed("gloo")
    model = build_model(script, args)
    train, held_out = read_windows(script.corpus, script.seq_len)
    trainer = PortableTrainer(
        model=model, args=args, train_dataset=train, eval_dataset=held_out, callbacks=[PrintLoss]
    )
    trainer.remove_callback(PrinterCallback)
    asked = SaveWhenAsked() if script.save_on_signal else None
    if asked:
        trainer.add_callback(asked)
    output_dir = Path(args.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    last = newest if trainer.is_deepspeed_enabled else get_last_checkpoint
    trainer.train(resume_from_checkpoint=last(output_dir) if script.resume else None)
    status = asked.status if asked else 0
    if status == 0 and args.do_eval:
        eval_loss = trainer.evaluate()["eval_loss"]
        if trainer.is_world_process_zero():
            print(f"eval_loss {eval_loss:.3f}", flush=True)
    leave(args.device, status)


if __name__ == "__main__":
    main()
