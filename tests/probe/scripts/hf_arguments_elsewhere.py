from transformers import Trainer

from settings import training_args

Trainer(args=training_args).train()
