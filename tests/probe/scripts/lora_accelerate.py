"""Accelerate with peft, as peft's examples do it: no target modules, peft knows the model's."""

import torch
from accelerate import Accelerator
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


class Config:
    model_name = "google/flan-t5-base"
    max_length = 128
    batch_size = 8
    rank = 16


def main():
    accelerator = Accelerator(mixed_precision="bf16")
    config = Config()
    tokenizer = AutoTokenizer.from_pretrained(config.model_name)
    peft_config = LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, r=config.rank, lora_alpha=32)
    model = AutoModelForSeq2SeqLM.from_pretrained(config.model_name)
    model = get_peft_model(model, peft_config)

    def collate(rows):
        return tokenizer.pad(rows, padding="max_length", max_length=config.max_length)

    train_dataloader = DataLoader(train_set, collate_fn=collate, batch_size=config.batch_size)
    eval_dataloader = DataLoader(eval_set, collate_fn=collate, batch_size=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, train_dataloader, eval_dataloader, optimizer = accelerator.prepare(
        model, train_dataloader, eval_dataloader, optimizer
    )


if __name__ == "__main__":
    main()
