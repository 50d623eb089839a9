import argparse

import deepspeed

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = parser.parse_args()
engine, _, _, _ = deepspeed.initialize(args=args, model=net(), config=args.deepspeed_config)
