"""TRL's own way to GRPO: a reward model by an option, or functions by their names."""

from dataclasses import dataclass

from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config
from trl.rewards import think_format_reward


@dataclass
class Judged(ScriptArguments):
    reward_model_name_or_path: str | None = None


KNOWN = {"think_format_reward": think_format_reward}


def main(script_args, training_args, model_args):
    reward_funcs = []
    if script_args.reward_model_name_or_path:
        reward_funcs.append(script_args.reward_model_name_or_path)
    reward_funcs.append(KNOWN["think_format_reward"])
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=reward_funcs,
        args=training_args,
        train_dataset=[],
        peft_config=get_peft_config(model_args),
    )
    trainer.train()


if __name__ == "__main__":
    main(*TrlParser((Judged, GRPOConfig, ModelConfig)).parse_args_and_config())
