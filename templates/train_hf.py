"""Train a small causal language model with the Hugging Face Trainer.

Run it with `deepspeed train_hf.py --deepspeed ds_config.json --bf16`, or without DeepSpeed with
`python train_hf.py`; every option of TrainingArguments works here.
Copy it, and put your own model and data in `build_model` and `read_windows`.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
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
from transformers.trainer_utils import get_last_checkpoint

HERE = Path(__file__).parent


@dataclass
class ScriptArguments:
    """What this script adds to TrainingArguments."""

    model_config: str = str(HERE / "model")
    """config.json or its folder"""
    corpus: Path = HERE / "corpus.txt"
    seq_len: int = 128
    resume: bool = False
    """go on from the last checkpoint in the output folder"""


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


Windows = list[dict[str, torch.Tensor]]


def read_windows(path: Path, seq_len: int) -> tuple[Windows, Windows]:
    """The corpus as bytes, one token each, in windows: what to train on, and the last tenth."""
    windows = torch.tensor(list(path.read_bytes())).split(seq_len)[:-1]
    examples = [{"input_ids": window, "labels": window} for window in windows]
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
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def drop_shared_memory() -> None:
    """Remove what DeepSpeed's CPU op leaves in /dev/shm: 69 MB a rank (csrc/cpu/comm/shm.cpp)."""
    port, rank = os.environ["MASTER_PORT"], os.environ["RANK"]
    for buffer in Path("/dev/shm").glob(
        f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_{rank}"
    ):
        buffer.unlink(missing_ok=True)


def leave(device: torch.device) -> None:
    """End this rank once every rank has done its work."""
    if not dist.is_initialized():
        return
    dist.barrier()
    if device.type == "cpu":
        drop_shared_memory()
        # gloo's thread wants the interpreter lock while Python finalises: one run in ten aborts
        # there ("terminate called without an active exception") with all its work done and saved.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    dist.destroy_process_group()


def main() -> None:
    """Train, save, evaluate."""
    # The arguments come first: they set DeepSpeed up, and stage 3 must know it before the model.
    script, args = HfArgumentParser((ScriptArguments, Arguments)).parse_args_into_dataclasses()
    torch.manual_seed(args.seed)
    model = build_model(script, args)
    train, held_out = read_windows(script.corpus, script.seq_len)
    trainer = Trainer(
        model=model, args=args, train_dataset=train, eval_dataset=held_out, callbacks=[PrintLoss]
    )
    trainer.remove_callback(PrinterCallback)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    checkpoint = get_last_checkpoint(args.output_dir) if script.resume else None
    trainer.train(resume_from_checkpoint=checkpoint)
    eval_loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"eval_loss {eval_loss:.3f}", flush=True)
    leave(args.device)


if __name__ == "__main__":
    main()
