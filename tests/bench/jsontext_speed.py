"""Time the reading of 1,000 configs with positions, beside hjson, which reads them without.

Run with `make bench`. The configs are of the kind that people keep in their repositories, 2 kB each.
"""

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable

from zerowiz.core.dsconfig.hjson import parse

FILES = 1000
RUNS = 5


def config(number: int) -> str:
    """A ZeRO-3 config with both offloads, as the Trainer's guides show it; no two are the same."""
    nvme = {"device": "nvme", "nvme_path": f"/local_nvme/{number}", "pin_memory": True}
    content = {
        "fp16": {
            "enabled": "auto",
            "loss_scale": 0,
            "loss_scale_window": 1000 + number,
            "initial_scale_power": 16,
            "hysteresis": 2,
            "min_loss_scale": 1,
        },
        "bf16": {"enabled": "auto"},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": "auto"},
        },
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500},
        },
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": nvme | {"buffer_count": 4, "fast_init": False},
            "offload_param": nvme | {"buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9},
            "overlap_comm": True,
            "contiguous_gradients": True,
            "sub_group_size": 1e9,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_max_live_parameters": 1e9,
            "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "steps_per_print": 2000,
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "wall_clock_breakdown": False,
    }
    return json.dumps(content, indent=4) + "\n"


def seconds(read: Callable[[str], object], texts: list[str]) -> float:
    """Time for one pass over all of them."""
    start = time.perf_counter()
    for text in texts:
        read(text)
    return time.perf_counter() - start


def main() -> None:
    """Read them several times in turn, print the medians."""
    texts = [config(number) for number in range(FILES)]
    hjson = importlib.import_module("hjson")
    rounds = [(seconds(parse, texts), seconds(hjson.loads, texts)) for _ in range(RUNS)]
    ours, theirs = zip(*rounds, strict=True)
    size = sum(map(len, texts)) / FILES
    lines = (
        f"{FILES} configs of {size / 1000:.1f} kB, {RUNS} rounds, seconds (min / median / max)",
        f"zerowiz, with positions   {min(ours):.3f} / {statistics.median(ours):.3f} / {max(ours):.3f}",
        f"hjson.loads               {min(theirs):.3f} / {statistics.median(theirs):.3f} / {max(theirs):.3f}",
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
