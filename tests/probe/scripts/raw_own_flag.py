import argparse

import deepspeed as ds

parser = argparse.ArgumentParser()
parser.add_argument("--ds_config_path", "--ds", default="configs/ds.json")
parser.add_argument("--gradient-checkpointing", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args()

model = build_model()
if args.gradient_checkpointing:
    model.gradient_checkpointing_enable()
engine, *_ = ds.initialize(model=model, config=args.ds_config_path)
