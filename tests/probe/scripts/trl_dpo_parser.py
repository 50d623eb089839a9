"""TRL's own way to DPO: every choice is an option, and the trainer loads model and reference."""

from datasets import load_dataset
from trl import DPOConfig, DPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config


def main(script_args, training_args, model_args):
    dataset = load_dataset(script_args.dataset_name)
    trainer = DPOTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=dataset[script_args.dataset_train_split],
        peft_config=get_peft_config(model_args),
    )
    trainer.train()


def make_parser():
    return TrlParser((ScriptArguments, DPOConfig, ModelConfig))


if __name__ == "__main__":
    parser = make_parser()
    main(*parser.parse_args_and_config())
