from argparse import ArgumentParser

import torch
from deepspeed import add_config_arguments, initialize
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM

parser = ArgumentParser(allow_abbrev=False)
parser.add_argument("--batch-size", type=int, default=4)
parser = add_config_arguments(parser)
args = parser.parse_args()

model = LlamaForCausalLM.from_pretrained("huggyllama/llama-7b")
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters())
engine, optimizer, _, _ = initialize(args, model, optimizer, model.parameters())
train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(test_set, batch_size=64)
