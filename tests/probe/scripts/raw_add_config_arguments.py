"""Train with the DeepSpeed engine itself."""

import argparse

import deepspeed
import torch
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_config", default="gpt2-medium")
    parser.add_argument("--seq_len", type=int, default=2048)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--local_rank", type=int, default=-1)
    return deepspeed.add_config_arguments(parser).parse_args()


def main():
    args = parse_args()
    config = AutoConfig.from_pretrained(args.model_config)
    model = AutoModelForCausalLM.from_config(config)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    engine, _, _, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters()
    )
    tokens = torch.randint(config.vocab_size, (512, args.seq_len))
    loader = DataLoader(tokens, batch_size=engine.train_micro_batch_size_per_gpu())
    for batch in loader:
        loss = engine(input_ids=batch, labels=batch).loss
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    main()
