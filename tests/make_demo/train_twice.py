"""Train a small model twice: with room for replicas, and under a budget that takes ZeRO-2.

`make demo` runs it. It trains on the NVIDIA GPUs of this machine where there are two or more, else on
two ranks of DeepSpeed's CPU accelerator. Each run's output is shown as it comes, with a sign of life
wherever it is silent for long, and kept in `demo/`.
"""

import json
import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
OUT = Path("demo")
ZEROWIZ = (sys.executable, "-m", "zerowiz")
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")
COMMON = ("--stage", "auto", "--yes", "--model", "templates/model")
STEPS = "20"

# An output that is silent for longer gets a sign of life.
SILENT_S = 10.0
COMPILES = "what DeepSpeed compiles takes a minute or so, once"

# What tells a Trainer the precision that the first run was planned with.
PRECISION_WORDS: Mapping[str, tuple[str, ...]] = {
    "bf16": ("--bf16",),
    "fp16": ("--fp16",),
    "fp32": (),
}


class Outcome(NamedTuple):
    """What a run's output shows."""

    strategy: str | None
    config: str | None
    losses: tuple[float, ...]

    @property
    def summary(self) -> str:
        """The loss from the first step to the last, the strategy, and its config."""
        first, last = self.losses[0], self.losses[-1]
        return f"loss {first:.3f} -> {last:.3f}, strategy {self.strategy}: config {self.config}"


def main() -> None:
    """Train both, and see that they show what they are to show."""
    started_s = time.monotonic()
    devices = () if count_gpus() > 1 else CPU
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()

    words = roomy_words(devices)
    precision = plan(*words)["workload"]["precision"]
    say(f"1. There is room, in {precision}: full replicas (a plain DeepSpeed loop)")
    roomy = train("roomy", words)
    require(roomy, "ddp")

    words = tight_words(precision, devices)
    lean = plan("--memory-budget", "1MB", *words)
    budget_bytes = choose_budget(needs(lean), high_bytes(lean))
    say(f"2. A budget of {budget_bytes // 2**20} MiB a rank: ZeRO-2 (the Hugging Face Trainer)")
    tight = train("tight", ("--memory-budget", str(budget_bytes), *words))
    require(tight, "zero2")

    for outcome in (roomy, tight):
        say(outcome.summary)
    say(f"done in {time.monotonic() - started_s:.0f} s")


def roomy_words(devices: tuple[str, ...]) -> tuple[str, ...]:
    """Options, script and its words: a loop whose precision the config decides."""
    script = ("templates/train_deepspeed.py", "--steps", STEPS)
    return (*COMMON, *devices, "--micro-batch", "4", *script)


def tight_words(precision: str, devices: tuple[str, ...]) -> tuple[str, ...]:
    """The same of a Trainer, which is told the precision.

    One sequence at a time: with more, activations hide in fp32 what ZeRO-2 spares. Offload would
    be taken where ZeRO-2 is uncertain, as on a CPU.
    """
    batch = ("--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2")
    device = ("--use_cpu",) if devices == CPU else ()
    script = ("templates/train_hf.py", "--max_steps", STEPS, *batch, *device)
    said = ("--offload", "none", "--no-gradient-checkpointing")
    return (*COMMON, *said, *devices, *script, *PRECISION_WORDS[precision])


def say(text: str) -> None:
    """A line of the demo's own."""
    sys.stdout.write(f"==> {text}\n")
    sys.stdout.flush()


def count_gpus() -> int:
    """The NVIDIA GPUs that the driver lists."""
    if shutil.which("nvidia-smi") is None:
        return 0
    words = ["nvidia-smi", "-L"]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    return len(re.findall(r"^GPU \d+:", listed, re.MULTILINE))


def plan(*words: str) -> dict[str, Any]:
    """What a launch with these words decides; also where nothing fits."""
    command = [*ZEROWIZ, "launch", "--dry-run", "--json", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.exit(f"==> the plan failed: {done.stderr}")
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def needs(content: Mapping[str, Any]) -> dict[str, int]:
    """The bytes that each strategy takes on a device, with the leanest buffers."""
    return {each["name"]: each["gpu"]["device_bytes"] for each in content["strategies"]}


def high_bytes(content: Mapping[str, Any]) -> int:
    """What ZeRO-2 takes on a device at most."""
    (zero2,) = [each for each in content["strategies"] if each["name"] == "zero2"]
    taken: int = zero2["gpu"]["high_device_bytes"]
    return taken


def choose_budget(device_bytes: Mapping[str, int], high_bytes: int) -> int:
    """A budget that ZeRO-2 keeps, and neither ZeRO-1 nor a replica: midway to the nearer of them.

    ZeRO-2 surely runs where its upper bound leaves room for that; else it is uncertain.
    """
    most = min(device_bytes["ddp"], device_bytes["zero1"])
    if device_bytes["zero2"] >= most:
        sys.exit(f"==> no budget takes ZeRO-2 here: of {dict(device_bytes)} it is not the least")
    return ((high_bytes if high_bytes < most else device_bytes["zero2"]) + most) // 2


def train(name: str, words: Sequence[str]) -> Outcome:
    """Launch, and show what it says as it comes."""
    output_dir = ("--output_dir", str(OUT / name))
    command = [*ZEROWIZ, "launch", "--output-dir", str(OUT), *words, *output_dir]
    log = OUT / f"{name}.log"
    with (
        log.open("w", encoding="utf-8") as kept,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job,
    ):
        for line in follow(job):
            sys.stdout.write(line)
            sys.stdout.flush()
            kept.write(line)
    if job.returncode != 0:
        sys.exit(f"==> the run ended with status {job.returncode}; its output is in {log}")
    return read_outcome(log.read_text(encoding="utf-8"))


def follow(job: "subprocess.Popen[bytes]") -> Iterator[str]:
    """What a job writes, with a sign of life wherever it is silent for long."""
    assert job.stdout is not None
    started_s, rest = time.monotonic(), b""
    with selectors.DefaultSelector() as selector:
        selector.register(job.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(SILENT_S):
                seconds = time.monotonic() - started_s
                say(f"still running, {seconds:.0f} s after the start; {COMPILES}")
                continue
            got = os.read(job.stdout.fileno(), 65536)
            if not got:
                break
            *lines, rest = (rest + got).split(b"\n")
            yield from (f"{line.decode(errors='replace')}\n" for line in lines)
    if rest:
        yield f"{rest.decode(errors='replace')}\n"


def read_outcome(text: str) -> Outcome:
    """What the output of a launch shows."""
    strategy = re.search(r"^> (\S+) ", text, re.MULTILINE)
    configs = re.findall(r"^# writes (\S+ds_config_\w+\.json)$", text, re.MULTILINE)
    losses = re.findall(r"^step \d+  loss ([\d.]+)$", text, re.MULTILINE)
    return Outcome(
        # `ZeRO-2` is `zero2` where it is typed.
        strategy=strategy[1].lower().replace("-", "") if strategy else None,
        config=configs[-1] if configs else None,
        losses=tuple(map(float, losses)),
    )


def require(outcome: Outcome, strategy: str) -> None:
    """See that a run took the strategy that it is to show, and learned."""
    if outcome.strategy != strategy:
        sys.exit(f"==> this run is to show {strategy}, and {outcome.strategy} was chosen")
    if len(outcome.losses) < 2 or outcome.losses[-1] >= outcome.losses[0]:
        sys.exit(f"==> the loss did not fall: {outcome.losses}")


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
