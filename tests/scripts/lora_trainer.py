"""Train adapters on the templates' model and corpus with the Trainer, and save them alone."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import distributed as dist
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

TEMPLATES = Path(__file__).parents[2] / "templates"


@dataclass
class ScriptArguments:
    model_config: str = str(TEMPLATES / "model")
    corpus: str = str(TEMPLATES / "corpus.txt")
    seq_len: int = 64
    lora_rank: int = 8


@dataclass
class Arguments(TrainingArguments):  # type: ignore[misc]
    output_dir: str = "out"
    use_cpu: bool = True
    bf16: bool = True
    max_steps: int = 8
    per_device_train_batch_size: int = 4
    learning_rate: float = 2e-2
    lr_scheduler_type: str = "constant"
    logging_steps: float = 1
    save_steps: float = 8
    report_to: str = "none"


def main() -> None:
    script, args = HfArgumentParser((ScriptArguments, Arguments)).parse_args_into_dataclasses()
    torch.manual_seed(args.seed)
    config = AutoConfig.from_pretrained(script.model_config, use_cache=False)
    base = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    lora = LoraConfig(r=script.lora_rank, target_modules=["q_proj", "v_proj", "down_proj"])
    model = get_peft_model(base, lora)
    tokens = torch.tensor(list(Path(script.corpus).read_bytes()))
    rows = [{"input_ids": row, "labels": row} for row in tokens.split(script.seq_len)[:-1]]
    Trainer(model=model, args=args, train_dataset=rows).train()
    if dist.is_initialized():
        # gloo's thread can abort a rank while Python finalises, with all its work done.
        dist.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
