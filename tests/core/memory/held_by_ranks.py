"""Train a tiny model whose weights ranks share, and print what each rank holds of it.

Run as `deepspeed --num_gpus RANKS held_by_ranks.py CONFIG SECTIONS`: the keys of a config.json, and
the sections of a ds_config by which ranks share weights.
"""

import argparse
import json
import sys

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank")
parser.add_argument("config", type=json.loads)
parser.add_argument("sections", type=json.loads)
args = parser.parse_args()
kind = args.config.pop("model_type")
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **args.config))
engine, *_ = deepspeed.initialize(
    model=model.to(torch.bfloat16),
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        **args.sections,
    },
)
tokens = torch.arange(16)[None]
engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
engine.step()
held = sum(parameter.numel() for parameter in engine.module.parameters())
stepped = sum(part.numel() for part in engine.optimizer.single_partition_of_fp32_groups)
sys.stdout.write(f"held {held} {stepped}\n")
