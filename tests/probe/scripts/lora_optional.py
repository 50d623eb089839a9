"""An example with a switch: adapters only where `--use_lora` asks for them."""

from dataclasses import dataclass, field

from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="Qwen/Qwen2.5-0.5B")
    use_lora: bool = field(default=False)
    lora_rank: int = field(default=16)
    lora_modules: str = field(default="q_proj,v_proj")


@dataclass
class DataArguments:
    max_seq_length: int = field(default=1024)


parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
model_args, data_args, training_args = parser.parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
if model_args.use_lora:
    model.enable_input_require_grads()
    config = LoraConfig(
        r=model_args.lora_rank,
        target_modules=model_args.lora_modules.split(","),
        modules_to_save=["lm_head"],
    )
    model = get_peft_model(model, config)
Trainer(model=model, args=training_args).train()
