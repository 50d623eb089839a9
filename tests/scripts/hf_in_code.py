"""Train a tiny model with the Trainer and arguments that stand in the code: there is no parser."""

import os
import sys

import torch
from torch import distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

VOCABULARY = 64
EXAMPLES = 64
SEQUENCE_TOKENS = 32


def main() -> None:
    # Each example counts upwards from its own place, so there is something to learn.
    starts = torch.arange(EXAMPLES).unsqueeze(1)
    rows = (starts + torch.arange(SEQUENCE_TOKENS)) % VOCABULARY
    args = TrainingArguments(
        output_dir="out",
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=True,
        use_cpu=True,
    )
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        use_cache=False,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=args,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
    )
    trainer.train()
    if dist.is_initialized():
        # gloo's thread can abort a rank while Python finalises, with all its work done.
        dist.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
