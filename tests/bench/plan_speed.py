"""Time `zerowiz plan` against DeepSpeed's own estimator, whole process against whole process.

Run with `make bench`. Each pair runs back to back on the same config.json, so a noisy machine slows
both; the median of the pairwise ratios is the figure to quote.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

MODEL = Path(__file__).parents[1] / "models" / "llama-2-7b"
RUNS = 7

OURS = (
    *(sys.executable, "-m", "zerowiz", "plan", "--machine", "4xA100-40GB"),
    *("--model", str(MODEL), "--seq-len", "2048", "--gradient-checkpointing", "--json"),
)
# The rival counts the same model from the same file and prints its own ZeRO-2 table.
RIVAL = (
    sys.executable,
    "-c",
    f"""
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs_all_cold
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained({str(MODEL)!r}))
total = sum(p.numel() for p in model.parameters())
estimate_zero2_model_states_mem_needs_all_cold(total_params=total, num_gpus_per_node=4)
""",
)


def seconds(argv: Sequence[str]) -> float:
    """Wall time of one whole process that must end well."""
    start = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Warm both up, time them in turn, print medians and the ratio."""
    seconds(OURS)
    seconds(RIVAL)
    pairs = [(seconds(OURS), seconds(RIVAL)) for _ in range(RUNS)]
    ours, rivals = zip(*pairs, strict=True)
    ratio = statistics.median(rival / own for own, rival in pairs)
    lines = (
        f"{RUNS} pairs, whole processes, wall seconds (min / median / max)",
        f"zerowiz plan --json          {min(ours):.3f} / {statistics.median(ours):.3f} / {max(ours):.3f}",
        f"deepspeed's estimate_zero2   {min(rivals):.3f} / {statistics.median(rivals):.3f} / {max(rivals):.3f}",
        f"zerowiz is {ratio:.0f} times faster (median of the pairwise ratios)",
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
