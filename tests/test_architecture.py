"""What holds for the house as a whole: values, numbers, templates, and what is not loaded."""

import ast
import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct

import zerowiz.core
from zerowiz.app.machines.this_machine import READERS
from zerowiz.cli.commands import COMMANDS
from zerowiz.core.lint.batch import FILLED
from zerowiz.core.machine.types import ACCELERATOR_ROWS, Accelerator
from zerowiz.core.memory.losses import LOSS_ROWS
from zerowiz.core.script.trainers import TRAINERS
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Strategy
from zerowiz.core.workload import (
    ATTENTION_ROWS,
    INTEGRATION_ROWS,
    OPTIMIZERS,
    PRECISIONS,
    TRAINER_ROWS,
    Attention,
    Integration,
    Loss,
    Optimizer,
    Precision,
    Trainer,
)
from zerowiz.errors import ExitCode

ROOT = Path(__file__).parents[1]


def core_values() -> Iterator[type[Struct]]:
    for module in pkgutil.walk_packages(zerowiz.core.__path__, "zerowiz.core."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and value.__module__ == module.name:
                yield from (value,) if issubclass(value, Struct) else ()


def streams_in(path: Path) -> list[str]:
    """Where a module names a stream of the process, or prints."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for node in nodes
        if (isinstance(node, ast.Attribute) and node.attr in {"stdin", "stdout", "stderr"})
        or (isinstance(node, ast.Name) and node.id in {"print", "input"})
    ]


def test_a_use_case_speaks_to_its_reporter_alone() -> None:
    modules = [*(ROOT / "zerowiz/app").rglob("*.py")]
    assert [] == [place for path in modules for place in streams_in(path)]
    assert [] != streams_in(ROOT / "zerowiz/ui/reporter.py")


def product_modules() -> Iterator[Path]:
    yield from (ROOT / "zerowiz").rglob("*.py")


def test_a_class_name_means_one_class() -> None:
    where: dict[str, list[str]] = {}
    for path in product_modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {} == {name: paths for name, paths in where.items() if len(paths) > 1}


RECORDS = list(core_values())
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)


def test_a_value_is_frozen_slotted_and_keyword_only() -> None:
    for record in RECORDS:
        said = record.__struct_config__.frozen, record.__struct_config__.dict
        kinds = {each.kind for each in inspect.signature(record).parameters.values()}
        assert ((True, False), {inspect.Parameter.KEYWORD_ONLY}) == (said, kinds), record


UNIT = re.compile(
    r"(^|_)(bytes|bytes_per_s|bytes_per_step|flop_per_s|tokens|tokens_per_s|steps|rate|fraction|seconds|milliseconds|hours|cost|per_hour)$"
)
# In DeepSpeed's config and in a model's config.json these count elements.
ELEMENTS = re.compile(r"_(size|dim|parameters|threshold)$")
COUNTS = {
    # of a machine
    *("index", "ordinal", "mig_slice", "nodes", "gpus_per_node", "ranks", "pid", "master_port"),
    *("nvlinks", "expected_nvlinks", "nvlink_links", "nvlink_gpus"),
    *("compute_capability", "cuda_version", "cores", "numa_node", "numa_nodes"),
    *("pcie_generation", "max_generation", "current_generation", "max_lanes", "current_lanes"),
    *("weakest_pair", "pair"),
    # of a step's time
    *("unknown_cores", "images"),
    # of learning
    *("lr", "weight_decay", "warmup_steps", "max_grad_norm"),
    # of a search
    "count",
    # of a model
    *("layers", "heads", "kv_heads", "positions", "copies", "params", "shape", "norms_per_layer"),
    *("experts", "experts_per_token", "expert_layers", "encoder_layers", "sliding_layers"),
    *("relative_attention_num_buckets", "patch", "labels", "sliding_every", "residual_dropouts"),
    "first_block",
    # of a rank: elements, said once on the class
    *("least_bucket", "most_bucket", "value", "optimizer_count", "param_count", "max_in_cpu"),
    # of a setting: the smallest count that it can be
    "least",
    "most",
    *("trainable", "largest", "module", "block_largest", "block", "embedding"),
    *("gathered_head", "staying_embedding"),
    *("held", "largest_slice", "blocks_kept", "moved", "left", "copied", "alone", "groups"),
    "stepped",
    # of machines and prices
    *("gpus", "kinds", "kinds_unasked", "kinds_without"),
    # of a job
    *("generation_batch", "stages", "wrong_stages", "eval_batch", "workers", "every_n_layers"),
    *("sequence_parallel", "shared", "tensor_parallel", "expert_parallel", "share", "built"),
    *("global_batch", "before", "now"),  # sequences of one optimizer step
    *("stage", "micro_batch", "lora_rank", "gpus", "rank", "status", "exit_status", "number"),
    *("stopped_by", "ended_at", "failed_at", "asked_at", "node_rank", "slots"),
    # of a release
    *("transformers_version", "trl_version", "eager_since", "fused_bias_since"),
    # of a text
    *("line", "config_line", "unfused_adam_line", "changed_line", "column", "start", "end"),
}


def imported_by(path: Path) -> set[str]:
    """The packages that a module names in its imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    froms = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | froms}


def test_replace_comes_from_the_one_place_that_takes_a_struct() -> None:
    """That of dataclasses ends in a TypeError, and mypy checks no keyword of that of msgspec."""
    paths = [*(ROOT / "zerowiz").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    known = {ROOT / "zerowiz/core/structs.py"}
    other = re.compile(r"from (dataclasses|msgspec.structs) import .*\breplace\b")
    texts = {path: path.read_text(encoding="utf-8") for path in paths if path not in known}
    assert [] == [path for path, text in texts.items() if other.search(text)]


def test_core_imports_msgspec_and_nothing_else_from_outside() -> None:
    imported = set[str]().union(*map(imported_by, (ROOT / "zerowiz/core").rglob("*.py")))
    assert {"msgspec", "zerowiz"} == imported - sys.stdlib_module_names


def is_number(hint: object) -> bool:
    """Whether nothing but numbers can stand there: `int`, `float | None`, `tuple[int, ...]`."""
    if get_origin(hint) is Callable:
        return False
    parts = [part for part in get_args(hint) or (hint,) if get_origin(part) is not Callable]
    kinds = set(parts) - {type(None), Ellipsis}
    inner = {a for kind in kinds for a in (get_args(kind) or (kind,))}
    return inner - {Ellipsis} <= {int, float} and bool(inner)


def test_a_number_carries_its_unit_or_is_a_plain_count() -> None:
    hints = [(record, hint) for record in RECORDS for hint in get_type_hints(record).items()]
    assert [] == [
        (record.__name__, name)
        for record, (name, hint) in hints
        if is_number(hint)
        if not (UNIT.search(name) or ELEMENTS.search(name) or name in COUNTS)
    ]


def test_no_count_is_allowed_that_no_value_has() -> None:
    held = {name for record in RECORDS for name in get_type_hints(record)}
    assert set() == COUNTS - held


TABLES: Mapping[str, tuple[type[StrEnum], Collection[object]]] = {
    "an optimizer": (Optimizer, OPTIMIZERS),
    "a precision": (Precision, PRECISIONS),
    "an accelerator": (Accelerator, ACCELERATOR_ROWS),
    "what reads the devices of an accelerator": (Accelerator, READERS),
    "a trainer": (Trainer, TRAINER_ROWS),
    "a class of a trainer": (Trainer, {row.trainer for row in TRAINERS.values()}),
    "an attention kernel": (Attention, ATTENTION_ROWS),
    "a loss": (Loss, LOSS_ROWS),
    "an integration": (Integration, INTEGRATION_ROWS),
    "what an integration fills": (Integration, FILLED),
}


@pytest.mark.parametrize("what", TABLES)
def test_each_member_has_its_row(what: str) -> None:
    members, table = TABLES[what]
    assert [] == [member for member in members if member not in table]


def templates() -> dict[str, int]:
    """The stage of each config that is there to be copied."""
    paths = (ROOT / "templates").glob("ds_config_*.json")
    configs = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    return {name: config["zero_optimization"]["stage"] for name, config in configs.items()}


def test_each_strategy_has_a_template_of_its_own_stage_and_none_is_left_over() -> None:
    assert {strategy.config_name: strategy.stage for strategy in STRATEGIES} == templates()


@each_strategy
def test_a_strategy_has_golden_configs(strategy: Strategy) -> None:
    names = {path.name for path in (ROOT / "tests/golden/configs").iterdir()}
    assert f"{strategy.name}-hf-unsettled.json" in names


HEAVY = {
    *("torch", "transformers", "deepspeed", "accelerate", "numpy", "pydantic"),
    *("questionary", "prompt_toolkit", "pynvml"),
}
PLANNER = {
    f"zerowiz.core.{name}"
    for name in ("decision.evaluate", "decision.flowchart", "memory.estimate", "speed.step_time")
}
# A plan for a machine that is described reads none.
OF_REAL_MACHINES = {
    "zerowiz.probe.machine.nvml",
    "zerowiz.probe.machine.nvml_child",
    "zerowiz.core.machine.merge",
}
# Most launches need none of these.
SELDOM = {
    "zerowiz.core.lint.linter",
    "zerowiz.core.machine.merge",
    "zerowiz.probe.model.trace",
    "zerowiz.app.machines.other_machine",
    "zerowiz.app.launch.multi_node",
}
LISTED = {f"zerowiz.cli.{name}" for name in COMMANDS} | {"zerowiz.core.decision.flowchart"}
TINY = (
    *("--model", str(ROOT / "templates/model"), "--micro-batch", "1"),
    str(ROOT / "templates/train_deepspeed.py"),
)
PLAN = ("plan", "--machine", "4xA100-40GB", "--model", "7b")

RUN = """
import sys
from zerowiz.cli.commands import main
try:
    main() if sys.argv[1:] else None
finally:
    sys.stderr.write("\\n" + " ".join(sys.modules))
"""


def loaded_by(*words: str) -> set[str]:
    """The modules in a fresh interpreter after `zerowiz WORDS`; without words, after the import."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    # A command that is refused loads little, and would prove nothing.
    assert done.returncode in {ExitCode.OK, ExitCode.NOTHING_FITS}, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        ((), HEAVY | LISTED | {"rich"}),
        ((*PLAN, "--json"), HEAVY | {"rich"} | OF_REAL_MACHINES),
        (PLAN, HEAVY),
        (("--help",), HEAVY | LISTED),
        (("launch", "--help"), HEAVY | SELDOM),
        (("launch", "--dry-run", "--accelerator", "cpu", *TINY), HEAVY | SELDOM),
        (
            ("check", str(ROOT / "templates/ds_config_zero2.json")),
            HEAVY | PLANNER | {"rich", "yaml"},
        ),
        (("doctor", "--accelerator", "cpu", *TINY), HEAVY | {"rich"}),
        (("--version",), HEAVY | LISTED | {"rich"}),
    ],
    ids=["import", "plan --json", "plan", "--help", "launch --help", "launch"]
    + ["check", "doctor", "--version"],
)
def test_nothing_heavy_is_loaded_where_nothing_heavy_is_done(
    words: tuple[str, ...], unwanted: set[str]
) -> None:
    loaded = loaded_by(*words)
    assert "zerowiz.cli.commands" in loaded
    assert set() == loaded & unwanted
    # An environment may change while a job runs: what tells its end is there before it starts.
    assert words[:1] != ("launch",) or {"zerowiz.core.job_end", "zerowiz.ui.job_end"} <= loaded


@pytest.mark.parametrize("name", sorted(SELDOM | LISTED | OF_REAL_MACHINES))
def test_what_is_seldom_loaded_is_there_to_be_loaded(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    command = getattr(importlib.import_module(f"zerowiz.cli.{name}"), name)
    assert COMMANDS[name] == command.__doc__
