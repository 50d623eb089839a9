from transformers import Trainer, TrainingArguments

ds_config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}
args = TrainingArguments(output_dir="out", deepspeed=ds_config)
Trainer(args=args).train()
