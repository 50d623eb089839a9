import argparse
import json

import deepspeed
from torch.utils.data import DataLoader


class Runner:
    def __init__(self, args):
        self.args = args
        with open(args.vocabulary) as f:
            self.words = f.read()
        with open(args.ds_file, encoding="utf-8") as f:
            ds_config = json.load(f)
        ds_config["steps_per_print"] = 100
        self.engine, _, _, _ = deepspeed.initialize(model=Model(), config_params=ds_config)
        self.loader = DataLoader(
            data(), batch_size=ds_config["train_micro_batch_size_per_gpu"], shuffle=True
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--ds_file", type=str, required=True)
    Runner(parser.parse_args())
