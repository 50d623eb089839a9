"""Build an engine that no portable checkpoint knows."""

import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.moe.layer import MoE

sys.path.insert(0, str(Path(__file__).parents[2] / "templates"))

from portable_checkpoint import check_savable  # type: ignore[import-not-found]

# Torch's own: another is compiled first.
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
}


def main() -> None:
    deepspeed.init_distributed()
    expert = torch.nn.Linear(8, 8)
    model = MoE(hidden_size=8, expert=expert, num_experts=2)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG
    )
    check_savable(engine)


if __name__ == "__main__":
    main()
