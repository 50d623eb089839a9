"""Build configs on public ones at every stage, and ask DeepSpeed whether it takes them as it took those.

`NET_MIRROR=DIR python tests/lint/bases.py` takes each public config of `tests/net/sources.json` as
a base (`--config FILE --stage N --offload ...`). Each pair is refused by zerowiz, with a key, or
one CPU rank trains two steps with it. What the engine holds of keys that are neither ZeRO nor
batch nor precision has to be as with the base itself. It takes some 15 minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

# Its siblings are `lint.…`, as they are to the tests.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from net.public import find_repositories, put_files

from zerowiz.app.api import read_machine
from zerowiz.app.decide import note_choices, plan_config, plan_options
from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT
from zerowiz.core.dsconfig.hjson import Dialect, parse, plain
from zerowiz.core.dsconfig.merge import ZERO
from zerowiz.core.strategy_types import OffloadChoice
from zerowiz.core.workload import Integration
from zerowiz.errors import ZerowizError

WAYS = (
    *((str(stage), OffloadChoice.NONE) for stage in range(4)),
    *(("2", OffloadChoice.OPTIMIZER), ("3", OffloadChoice.OPTIMIZER), ("3", OffloadChoice.ALL)),
)
# Two of them fit a CPU rank; what they are decides nothing of what is compared.
_BUCKETS = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")
_SMALL = 1_000_000
# What the Trainer's arguments are called that have to agree with numbers of a config.
_ARGUMENTS: Mapping[tuple[str, ...], str] = {
    ("optimizer", "params", "lr"): "learning_rate",
    ("optimizer", "params", "weight_decay"): "weight_decay",
    ("optimizer", "params", "eps"): "adam_epsilon",
    ("scheduler", "params", "warmup_num_steps"): "warmup_steps",
    ("gradient_clipping",): "max_grad_norm",
    ("train_micro_batch_size_per_gpu",): "per_device_train_batch_size",
    ("gradient_accumulation_steps",): "gradient_accumulation_steps",
}


class Built(NamedTuple):
    """A base at a stage."""

    name: str
    values: Mapping[str, Any] | None
    """None where zerowiz refuses it."""
    refusal: str = ""


def build(path: Path, integration: Integration) -> Iterator[Built]:
    """The config on this base for each stage and offload."""
    machine = read_machine("cpu", gpus_per_node=1)
    for stage, offload in WAYS:
        name = f"{stage}-{offload.value}"
        options = Options(
            config=path,
            stage=stage,
            offload=offload,
            model="10m",
            integration=integration,
            # What other programs leave free of this host decides nothing.
            memory_budget="8GiB",
            host_memory="64GiB",
        )
        try:
            plan = plan_options(options, machine, None)
            note_choices(plan, SILENT)
            if plan.strategy is None:
                yield Built(name, None, "nothing fits")
                continue
            yield Built(name, plan_config(plan, plan.strategy).merged.values)
        except ZerowizError as error:
            yield Built(name, None, error.message)


def question(name: str, values: Mapping[str, Any], path: Path, *, by_trainer: bool) -> Any:
    """What `ask.py` is asked of a config."""
    values = json.loads(json.dumps(values))
    zero = values.get(ZERO)
    if isinstance(zero, dict):
        zero |= {key: _SMALL for key in _BUCKETS if isinstance(zero.get(key), (int, float))}
    path.write_text(json.dumps(values), encoding="utf-8")
    return {
        "id": name,
        "asked": "hf" if by_trainer else "deepspeed",
        "path": str(path),
        "own": False,
        "world_size": 1,
        "compute_capability": None,
        "arguments": arguments_for(values) if by_trainer else {},
    }


def arguments_for(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which the Trainer takes a config."""
    found: dict[str, Any] = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}
    for keys, name in _ARGUMENTS.items():
        value: Any = values
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = value
    betas = values.get("optimizer", {}).get("params", {}).get("betas")
    if isinstance(betas, list):
        found |= {"adam_beta1": betas[0], "adam_beta2": betas[1]}
    half = values.get("fp16", {}).get("enabled") is True
    return {**found, "fp16": half, "bf16": not half and "bf16" in values}


def of_learning(facts: Mapping[str, object]) -> dict[str, object]:
    """What the engine holds that is neither ZeRO nor batch nor precision."""
    left = ("zero", "_ds_config", "ds_config", "train_", "gradient_accumulation_steps", "aio")
    parts = ("precision", "dtype", "fp16", "bf16", "bfloat16", "torch_autocast", "float16")
    computed = {"losses", "finite", "falls", "wrapper", "basic_optimizer", "dtype"}
    return {
        name: value
        for name, value in facts.items()
        if not name.lstrip("_").startswith(left)
        and not any(part in name for part in parts)
        and name not in computed
        and "loss_scale" not in name
    }


def main() -> int:
    """Print what differs, and how many did not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="how many to leave out")
    parser.add_argument("--count", type=int, default=1000, help="how many configs at most")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = folder / "cache"
        found, _missing = find_repositories(os.environ.get("NET_MIRROR"), cache)
        questions, built, seen = list[Any](), dict[str, list[Built]](), set[str]()
        for file in put_files("configs", found, folder / "public"):
            text = file.path.read_text(encoding="utf-8")
            if file.sha256 in seen or file.path.suffix != ".json" or len(built) >= words.count:
                continue
            seen.add(file.sha256)
            if len(seen) <= words.first:
                continue
            by_trainer = '"auto"' in text
            try:
                values = plain(parse(text, Dialect.HJSON))
            except ValueError:
                continue
            if not isinstance(values, dict):
                continue
            integration = Integration.HF if by_trainer else Integration.DEEPSPEED
            built[file.name] = list(build(file.path, integration))
            for place, each in enumerate([Built("base", values), *built[file.name]]):
                if each.values is not None:
                    path = folder / f"{len(built)}-{place}.json"
                    key = f"{file.name} {each.name}"
                    questions.append(question(key, each.values, path, by_trainer=by_trainer))
        asked, answered = folder / "asked.json", folder / "answered.json"
        asked.write_text(json.dumps(questions), encoding="utf-8")
        ask = Path(__file__).with_name("ask.py")
        subprocess.run([sys.executable, str(ask), str(asked), str(answered)], check=True)
        answers = {each["id"]: each for each in json.loads(answered.read_text(encoding="utf-8"))}
    counts = Counter[str]()
    for file_name, ways in built.items():
        base = answers[f"{file_name} base"]
        if base["raised"] is not None:
            counts["bases that do not train here as they are"] += 1
            continue
        counts["bases that train here"] += 1
        for each in ways:
            counts[_judge(f"{file_name} {each.name}", each, base, answers)] += 1
    for what, count in counts.most_common():
        sys.stdout.write(f"{count:5} {what}\n")
    return 1 if counts["DIFFERS"] or counts["RAISES"] else 0


def _judge(key: str, each: Built, base: Any, answers: Mapping[str, Any]) -> str:
    if each.values is None:
        sys.stdout.write(f"refused: {key}: {each.refusal}\n")
        return "pairs refused before a launch"
    answer = answers[key]
    if answer["raised"] is not None:
        sys.stdout.write(f"RAISES: {key}: {answer['raised'][:300]}\n")
        return "RAISES"
    before, now = of_learning(base["facts"]), of_learning(answer["facts"])
    differs = {k: (before.get(k), now.get(k)) for k in before | now if before.get(k) != now.get(k)}
    if differs:
        sys.stdout.write(f"DIFFERS: {key}: {differs}\n"[:600])
        return "DIFFERS"
    return "pairs that train as the base does"


if __name__ == "__main__":
    sys.exit(main())
