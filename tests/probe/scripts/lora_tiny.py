"""Train adapters on a tiny model, small enough to really run on two CPU ranks."""

import os
import sys
from dataclasses import dataclass, field

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

ROWS, TOKENS = 16, 32
torch.manual_seed(0)  # the weights are made before the Trainer seeds anything

@dataclass
class ModelArguments:
    model_config: str = field(default="model")
    lora_r: int = field(default=4)
    lora_target_modules: list[str] = field(default_factory=lambda: ["q_proj", "v_proj"])


@dataclass
class Arguments(TrainingArguments):
    output_dir: str = "out"
    use_cpu: bool = True
    max_steps: int = 2
    per_device_train_batch_size: int = 2
    bf16: bool = True
    save_strategy: str = "no"
    report_to: str = "none"


def main():
    parser = HfArgumentParser((ModelArguments, Arguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    config = AutoConfig.from_pretrained(model_args.model_config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    lora = LoraConfig(r=model_args.lora_r, target_modules=model_args.lora_target_modules)
    model = get_peft_model(model, lora)
    row = torch.arange(TOKENS)
    rows = [{"input_ids": row, "labels": row}] * ROWS
    Trainer(model=model, args=training_args, train_dataset=rows).train()
    if dist.is_initialized():
        # gloo's thread can abort a rank while Python finalises, with all its work done.
        dist.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
