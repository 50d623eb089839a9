import sys

from transformers import Trainer, TrainingArguments

if "--small" in sys.argv:
    args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True)
else:
    args = TrainingArguments("out", per_device_train_batch_size=8, bf16=True)
Trainer(args=args).train()
