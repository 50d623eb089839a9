from transformers import HfArgumentParser

from .arguments import ModelArguments, RetrieverTrainingArguments
from .trainer import RetrieverTrainer


def main():
    parser = HfArgumentParser((ModelArguments, RetrieverTrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    RetrieverTrainer(model_args, args=training_args).train()
