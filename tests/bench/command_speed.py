"""Time commands as whole processes, in turn: what slows the machine slows all of them.

Run with `make bench`. `python -c pass` is what no Python program can be faster than here. The last
lines are of the driver's child: eight replayed GPUs, read in this process and in a forked one.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

# The tests that ask for the same runs are `app.…` to each other.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from app.decide.asked import ROWS, words_of
from paths import MODELS, ROOT
from recorded import described, play, recording

from zerowiz.probe.files import Files, World
from zerowiz.probe.machine.nvml_child import read_in_child

EIGHT = "synthetic/b200-x8-odd-gpu"
MODEL = str(MODELS / "llama-2-7b")
FILES, READINGS = 1000, 101
ZEROWIZ, BARE = (sys.executable, "-m", "zerowiz"), (sys.executable, "-c", "pass")
# The rival counts the same model from the same file and prints its own ZeRO-2 table.
RIVAL = f"""
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs_all_cold
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained({MODEL!r}))
total = sum(p.numel() for p in model.parameters())
estimate_zero2_model_states_mem_needs_all_cold(total_params=total, num_gpus_per_node=4)
"""
# A plan that is refused has its answer too, a config with mistakes has it, and a host may have no GPU.
ANSWERED = frozenset({os.EX_OK, 4, 5, 6})

Argvs = Sequence[Sequence[str]]
Group = tuple[str, int, Mapping[str, Argvs]]


def list_groups(folder: Path) -> Iterator[Group]:
    """A heading, how many turns, and by its name what is run in each turn, one after the other."""
    plan = (*ZEROWIZ, "plan", "--machine", "4xA100-40GB", "--model", MODEL, "--seq-len", "2048")
    yield (
        "pairs, whole processes, wall seconds (min / median / max), times the first, CPU times its",
        7,
        {
            "zerowiz plan --json": [(*plan, "--gradient-checkpointing", "--json")],
            "deepspeed's estimate_zero2": [(sys.executable, "-c", RIVAL)],
        },
    )
    asked = [(*ZEROWIZ, "plan", *words_of(row, folder)) for row in ROWS[:: len(ROWS) // 20]]
    yield (
        "measured runs, whole processes, wall seconds (min / median / max), times the first, CPU times its",
        20,
        {"python -c pass": [BARE], "zerowiz plan --json": asked},
    )
    yield (
        "turns, whole processes, wall seconds (min / median / max), times the first, CPU times its",
        15,
        {
            "python -c 'import typer'": [(sys.executable, "-c", "import typer")],
            "zerowiz --version": [(*ZEROWIZ, "--version")],
            "zerowiz --help": [(*ZEROWIZ, "--help")],
            "zerowiz plan --json": [(*plan, "--gradient-checkpointing", "--json")],
            "plan --json, 8b on 8 x H100": [
                (*ZEROWIZ, "plan", "--machine", "8xH100", "--model", "8b", "--json")
            ],
        },
    )
    machine = (*ZEROWIZ, "machine")
    on_all = (*ZEROWIZ, "plan", "--machine", "all", "--gradient-checkpointing", "--json")
    yield (
        "rounds, whole processes, wall seconds (min / median / max), times the first, CPU times its",
        9,
        {
            "python -c pass": [BARE],
            "machine --json, a file of 8 GPUs": [
                (*machine, "--json", "--machine", described(EIGHT, folder))
            ],
            "machine, as this host answers": [machine],
            **{
                f"plan --machine all, {size}": [(*on_all, "--model", size)]
                for size in ("1b", "7b", "70b", "405b")
            },
        },
    )
    yield (
        f"checks of {FILES} configs, wall seconds (min / median / max), times the first, CPU times its",
        5,
        {"zerowiz check": [(*ZEROWIZ, "check", "--json", str(write_configs(folder / "configs")))]},
    )


def write_configs(folder: Path) -> Path:
    """The shipped configs in turn, no two alike, every tenth with a mistake."""
    folder.mkdir()
    templates = sorted((ROOT / "templates").glob("ds_config_*.json"))
    for number in range(FILES):
        config = json.loads(templates[number % len(templates)].read_text(encoding="utf-8"))
        config["steps_per_print"] = number
        if number % 10 == 0:
            config["gradient_acumulation_steps"] = 4
        path = folder / f"ds_config_{number}.json"
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def seconds(argv: Sequence[str]) -> tuple[float, float]:
    """Wall time and CPU time of one whole process that must give its answer."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=ROOT)
    wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in ANSWERED:
        sys.exit(done.stderr)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show(group: Group) -> None:
    """Warm all up, time them in turn, print medians."""
    heading, turns, cases = group
    for argvs in cases.values():
        seconds(argvs[0])
    rounds = [
        [seconds(argvs[turn % len(argvs)]) for argvs in cases.values()] for turn in range(turns)
    ]
    sys.stdout.write(f"{turns} {heading}\n")
    for place, name in enumerate(cases):
        times = [taken[place][0] for taken in rounds]
        spread = f"{min(times):.3f} / {statistics.median(times):.3f} / {max(times):.3f}"
        wall, cpu = (
            statistics.median(taken[place][kind] / taken[0][kind] for taken in rounds)
            for kind in (0, 1)
        )
        sys.stdout.write(f"{name:<34}{spread}  {wall:.2f}  {cpu:.2f}\n")


def time_child() -> None:
    """What it costs to read the driver in a child process."""
    content, world = recording(EIGHT), World(files=Files(), environ={})
    ways: Mapping[str, Callable[[], object]] = {
        "in this process": lambda: play(content),
        "in a child": lambda: read_in_child(world, lambda *_: play(content)),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(READINGS):
        for way, read in ways.items():
            start = time.perf_counter()
            read()
            times[way].append(1000 * (time.perf_counter() - start))
    for way, taken in times.items():
        sys.stdout.write(f"8 replayed GPUs, {way}: {statistics.median(taken):.1f} ms\n")


def main() -> None:
    """All groups, and the child."""
    with TemporaryDirectory() as folder:
        for group in list_groups(Path(folder)):
            show(group)
    time_child()


if __name__ == "__main__":
    main()
