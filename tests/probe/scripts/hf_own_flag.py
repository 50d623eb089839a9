import argparse

from transformers import Trainer, TrainingArguments


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_id", type=str, default="google/flan-t5-xl")
    parser.add_argument("--per_device_train_batch_size", "-b", type=int, default=8)
    parser.add_argument("--gradient_checkpointing", type=bool, default=True)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--ds", type=str, default=None, help="DeepSpeed config")
    args, _ = parser.parse_known_args()
    return args


def main(args):
    training_args = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=args.per_device_train_batch_size,
        bf16=args.bf16,
        deepspeed=args.ds,
        gradient_checkpointing=args.gradient_checkpointing,
    )
    Trainer(args=training_args).train()


if __name__ == "__main__":
    main(parse_arguments())
