import argparse

import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed_config", type=str)
parser.add_argument("--micro_batch_size", type=int, default=2)
args = parser.parse_args()
engine, _, _, _ = deepspeed.initialize(args=args, model=make_model())
