"""KTO whose reference depends on whether adapters train."""

from dataclasses import dataclass

from peft import LoraConfig
from transformers import AutoModelForCausalLM, HfArgumentParser
from trl import KTOConfig, KTOTrainer


@dataclass
class Arguments:
    model_name: str = "Qwen/Qwen2.5-1.5B"
    use_lora: bool = False


parser = HfArgumentParser((Arguments, KTOConfig))
arguments, training_args = parser.parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(arguments.model_name)
ref_model = None if arguments.use_lora else AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B")
peft_config = None
if arguments.use_lora:
    peft_config = LoraConfig(r=16, target_modules="all-linear")
trainer = KTOTrainer(
    model=model,
    ref_model=ref_model,
    args=training_args,
    train_dataset=[],
    peft_config=peft_config,
)
trainer.train()
