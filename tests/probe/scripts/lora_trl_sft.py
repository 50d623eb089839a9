"""Supervised fine-tuning with TRL and a peft_config, everything in the code."""

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

RANK = 32

peft_config = LoraConfig(
    r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"
)
training_args = SFTConfig(
    output_dir="qwen-sft",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_length=2048,
    bf16=True,
    packing=True,
)
trainer = SFTTrainer(
    model="Qwen/Qwen2.5-7B",
    args=training_args,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    peft_config=peft_config,
)
trainer.train()
