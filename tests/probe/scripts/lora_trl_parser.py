"""TRL's own way: every choice is an option of ModelConfig."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import (
    ModelConfig,
    ScriptArguments,
    SFTConfig,
    SFTTrainer,
    TrlParser,
    get_peft_config,
    get_quantization_config,
)


def main(script_args, training_args, model_args):
    quantization_config = get_quantization_config(model_args)
    model_kwargs = {"attn_implementation": model_args.attn_implementation}
    if quantization_config is not None:
        model_kwargs["quantization_config"] = quantization_config
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, **model_kwargs)
    dataset = load_dataset(script_args.dataset_name)
    trainer = SFTTrainer(
        model=model,
        args=training_args,
        train_dataset=dataset["train"],
        peft_config=get_peft_config(model_args),
    )
    trainer.train()


if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    main(*parser.parse_args_and_config())
