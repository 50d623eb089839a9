#!/usr/bin/env python
# -*- coding: utf-8 -*-
"""Fine-tune a causal LM; every argument comes from dataclasses."""

import sys
from dataclasses import dataclass, field
from typing import Optional

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)


@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="gpt2-medium", metadata={"help": "id or folder"})
    attn_implementation: Optional[str] = field(default="sdpa")
    use_fast: bool = True


@dataclass
class DataArguments:
    dataset_name: Optional[str] = None
    block_size: int | None = field(default=1024, metadata={"help": "tokens of one sequence"})


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(sys.argv[1])
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(
        model_args.model_name_or_path, attn_implementation=model_args.attn_implementation
    )
    trainer = Trainer(model=model, args=training_args, processing_class=tokenizer)
    trainer.train()


if __name__ == "__main__":
    main()
