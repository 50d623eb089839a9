import yaml
from transformers import Trainer, TrainingArguments

with open("train.yaml") as file:
    settings = yaml.safe_load(file)
args = TrainingArguments(per_device_train_batch_size=2, **settings)
Trainer(args=args).train()
