import argparse

import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--cfg")
deepspeed.add_config_arguments(parser)
args = parser.parse_args()
engine, _, _, _ = deepspeed.initialize(model=net(), config=args.cfg)
