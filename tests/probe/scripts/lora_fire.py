"""Instruction tuning in the manner of Alpaca-LoRA: one function, its parameters are the options."""

import os
from typing import List

import fire
import torch
import transformers
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import LlamaForCausalLM, LlamaTokenizer


def train(
    base_model: str = "huggyllama/llama-7b",
    data_path: str = "yahma/alpaca-cleaned",
    output_dir: str = "./lora-alpaca",
    batch_size: int = 128,
    micro_batch_size: int = 4,
    num_epochs: int = 3,
    cutoff_len: int = 256,
    lora_r: int = 8,
    lora_alpha: int = 16,
    lora_target_modules: List[str] = ["q_proj", "v_proj"],
    group_by_length: bool = False,
):
    gradient_accumulation_steps = batch_size // micro_batch_size
    if int(os.environ.get("WORLD_SIZE", 1)) != 1:
        gradient_accumulation_steps = gradient_accumulation_steps // int(os.environ["WORLD_SIZE"])

    model = LlamaForCausalLM.from_pretrained(
        base_model, load_in_8bit=True, torch_dtype=torch.float16
    )
    tokenizer = LlamaTokenizer.from_pretrained(base_model)

    def tokenize(prompt):
        return tokenizer(prompt, truncation=True, max_length=cutoff_len, padding=False)

    model = prepare_model_for_kbit_training(model)
    config = LoraConfig(
        r=lora_r,
        lora_alpha=lora_alpha,
        target_modules=lora_target_modules,
        lora_dropout=0.05,
        bias="none",
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, config)
    data = load_dataset(data_path)["train"].map(lambda row: tokenize(row["instruction"]))
    trainer = transformers.Trainer(
        model=model,
        train_dataset=data,
        args=transformers.TrainingArguments(
            per_device_train_batch_size=micro_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            num_train_epochs=num_epochs,
            fp16=True,
            optim="adamw_torch",
            output_dir=output_dir,
            group_by_length=group_by_length,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    fire.Fire(train)
