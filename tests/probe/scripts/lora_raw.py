"""A DeepSpeed loop of its own over a model with adapters."""

import argparse

import deepspeed
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

LORA = {"r": 64, "modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="facebook/opt-1.3b")
    parser.add_argument("--max_seq_len", type=int, default=1024)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--full", action="store_true", help="train every parameter")
    parser.add_argument("--local_rank", type=int, default=-1)
    args = deepspeed.add_config_arguments(parser).parse_args()

    model = AutoModelForCausalLM.from_pretrained(args.model)
    if not args.full:
        config = LoraConfig(
            task_type=TaskType.CAUSAL_LM, r=LORA["r"], target_modules=LORA["modules"]
        )
        model = get_peft_model(model, config)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=True)
    engine, *_ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)
    for batch in DataLoader(rows(args.max_seq_len), batch_size=args.batch_size):
        engine.backward(engine(**batch).loss)
        engine.step()


if __name__ == "__main__":
    main()
