from dataclasses import dataclass, field

import transformers
from transformers import Trainer


@dataclass
class Arguments(transformers.TrainingArguments):
    per_device_train_batch_size: int = field(default=2)
    model_max_length: int = 512
    bf16: bool = True


def train():
    parser = transformers.HfArgumentParser(Arguments)
    (training_args,) = parser.parse_args_into_dataclasses()
    model = transformers.AutoModelForCausalLM.from_pretrained("facebook/opt-125m")
    Trainer(model=model, args=training_args).train()


train()
