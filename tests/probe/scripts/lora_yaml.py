"""Everything stands in a YAML file that this script opens: little can be seen."""

import sys

import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

with open(sys.argv[1]) as file:
    cfg = yaml.safe_load(file)

model = AutoModelForCausalLM.from_pretrained(cfg["model"])
model = get_peft_model(model, LoraConfig(**cfg["lora"]))
args = TrainingArguments(output_dir="out", bf16=True, optim=cfg["optim"])
args.per_device_train_batch_size = cfg["batch"]
Trainer(model=model, args=args).train()
