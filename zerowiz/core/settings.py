"""The row of a setting: how it is said on a command line, described, and shown.

A setting is a field of a typed class, and its row stands in the field's annotation. So the class is
the table: options, help, JSON, assumptions and comparison rows are made from it.
"""

from enum import StrEnum
from typing import get_args

from msgspec import Struct


class Panel(StrEnum):
    """The headings under which `--help` lists options."""

    MODEL = "Model"
    MACHINE = "Machine"
    JOB = "Training step"
    CHOICE = "Choice"
    LENGTH = "Time and cost"
    OUTPUT = "Output"


class SettingRow(Struct, frozen=True, kw_only=True):
    """What everybody needs to know of one setting, beside its type and its default."""

    flag: str
    """On zerowiz's command line; a switch that can be off has both: `--packing/--no-packing`."""
    help: str
    panel: Panel
    value: str | None = None
    """What stands behind the flag in `--help`, where its type does not say enough."""
    short: str | None = None
    """A second spelling of one letter: `-y`."""
    assumed: str | None = None
    """How a plan says that it rests on the default: `micro-batch {value}`; None: it does not."""
    assumed_always: bool = False
    """Whether a plan says so of any job, or only where a script decides it and does not show it."""
    of_adapters: bool = False
    """Whether it means something only where adapters train."""
    of_generation: bool = False
    """Whether it means something only where the trainer samples completions."""
    shown: str | None = None
    """How a plan's step says another value than the default: `{value} loss`; None: it does not."""
    measurable: bool = True
    """Whether the ranks of `measure` can train with it; else `measure` refuses it."""

    @property
    def key(self) -> str:
        """Its name in a record of answers: `--seq-len` is `seq_len` there."""
        return self.on.removeprefix("--").replace("-", "_")

    @property
    def on(self) -> str:
        """The spelling that sets it, or switches it on."""
        return self.flag.partition("/")[0]

    @property
    def off(self) -> str:
        """The spelling that switches it off; empty if there is none."""
        return self.flag.partition("/")[2]


def read_rows(kind: type) -> dict[str, SettingRow]:
    """The row of each field that has one, by the field's name, in the order of the fields."""
    hints = kind.__annotations__.items()
    return {name: read_row(hint) for name, hint in hints if hasattr(hint, "__metadata__")}


def read_row(annotation: object) -> SettingRow:
    """The row in an annotation.

    Raises:
        TypeError: There is none.
    """
    for each in get_args(annotation):
        if isinstance(each, SettingRow):
            return each
    raise TypeError(f"{annotation} has no SettingRow")


# The settings that are no part of a training step. Those that are have their row in `Workload`.
MODEL = SettingRow(
    flag="--model", help="Folder, hub id, name (llama-3.1-8b) or size (7b)", panel=Panel.MODEL
)
TRACE = SettingRow(
    flag="--trace/--no-trace",
    help="Run the model on the meta device to count it exactly",
    panel=Panel.MODEL,
)
MACHINE = SettingRow(
    flag="--machine",
    help="File, spec (4xA100-40GB), instance (p5.48xlarge); of plan: all",
    panel=Panel.MACHINE,
)
ACCELERATOR = SettingRow(
    flag="--accelerator", help="Accelerator that DeepSpeed uses", panel=Panel.MACHINE
)
GPUS = SettingRow(flag="--gpus", help="NVML indices to use: 0,2,3", panel=Panel.MACHINE)
NODES = SettingRow(flag="--nodes", help="Number of nodes, all alike", panel=Panel.MACHINE)
GPUS_PER_NODE = SettingRow(
    flag="--gpus-per-node", help="GPUs (or CPU ranks) per node", panel=Panel.MACHINE
)
HOSTFILE = SettingRow(
    flag="--hostfile", help="DeepSpeed hostfile: one `host slots=N` per line", panel=Panel.MACHINE
)
INTERCONNECT = SettingRow(
    flag="--interconnect",
    help="Links that cannot be detected: nvlink, infiniband:400Gb/s",
    panel=Panel.MACHINE,
)
HOST_MEMORY = SettingRow(
    flag="--host-memory",
    help="Memory of each node's host: 1TiB, 512GB",
    panel=Panel.MACHINE,
)
MEMORY_BUDGET = SettingRow(
    flag="--memory-budget",
    help="Memory per GPU: 30GiB, 24GB, bytes, or a fraction",
    panel=Panel.MACHINE,
)
GLOBAL_BATCH = SettingRow(
    flag="--global-batch", help="Sequences per optimizer step, over all GPUs", panel=Panel.JOB
)
OBJECTIVE = SettingRow(
    flag="--objective",
    help="How to choose: flowchart, fastest or smallest",
    panel=Panel.CHOICE,
)
STAGE = SettingRow(flag="--stage", help="ZeRO stage: auto, 0, 1, 2 or 3", panel=Panel.CHOICE)
OFFLOAD = SettingRow(
    flag="--offload", help="What may be offloaded to host memory", panel=Panel.CHOICE
)
NVME_PATH = SettingRow(
    flag="--nvme-path", help="Offload to this folder on NVMe (stage 3)", panel=Panel.CHOICE
)
HPZ = SettingRow(
    flag="--hpz/--no-hpz",
    help="Stage 3: each node keeps a copy of the weights",
    panel=Panel.CHOICE,
)
QUANTIZED_WEIGHTS = SettingRow(
    flag="--quantized-weights", help="Stage 3: gather the weights in int8", panel=Panel.CHOICE
)
ALLOW_SLOW = SettingRow(
    flag="--allow-slow", help="Allow ZeRO-3 over a slow link", panel=Panel.CHOICE
)
IGNORE_OOM = SettingRow(
    flag="--ignore-oom",
    help="Ignore earlier out-of-memory errors on this machine",
    panel=Panel.CHOICE,
)
CALIBRATION = SettingRow(
    flag="--calibration/--no-calibration",
    help="Scale times by what `measure` found on this machine",
    panel=Panel.CHOICE,
)
ACCOUNTING = SettingRow(
    flag="--accounting",
    help="Count what DeepSpeed allocates, or the rule of thumb",
    panel=Panel.CHOICE,
)
INTEGRATION = SettingRow(
    flag="--integration", help="Which library passes the config to DeepSpeed", panel=Panel.CHOICE
)
CONFIG_VIA = SettingRow(
    flag="--config-via",
    help="How the script gets the config: flag:NAME, env, file:PATH, none",
    panel=Panel.CHOICE,
)
CONFIG = SettingRow(flag="--config", help="Use this DeepSpeed config unchanged", panel=Panel.CHOICE)
MODULE = SettingRow(
    flag="--module",
    short="-m",
    help="Run SCRIPT as a module, like `python -m`",
    panel=Panel.CHOICE,
)
TOKENS = SettingRow(flag="--tokens", help="Tokens per epoch: 2B, 500M", panel=Panel.LENGTH)
SEQUENCES = SettingRow(
    flag="--sequences", help="Sequences per epoch, of --seq-len tokens: 52k", panel=Panel.LENGTH
)
EPOCHS = SettingRow(flag="--epochs", help="Number of epochs", panel=Panel.LENGTH)
PRICE = SettingRow(
    flag="--price",
    help="Price: 2.50/gpu-hour, 32/node-hour, NAME=..., or a file",
    panel=Panel.LENGTH,
)
OUTPUT_DIR = SettingRow(flag="--output-dir", help="Folder for the configs", panel=Panel.OUTPUT)
YES = SettingRow(flag="--yes", short="-y", help="Ask nothing", panel=Panel.OUTPUT)
LIMITS = SettingRow(
    flag="--limits",
    help="Show the largest micro-batch and the longest sequence that fit",
    panel=Panel.OUTPUT,
)
COMPARE = SettingRow(
    flag="--compare",
    help="Compare with a plan that differs by these: --compare --machine 8xH100-80GB",
    value="<options>...",
    panel=Panel.OUTPUT,
)
EXPLAIN = SettingRow(
    flag="--explain",
    value="[<strategy>]",
    help="Show what takes time and memory, of the choice or of a strategy: zero2",
    panel=Panel.OUTPUT,
)
VERBOSE = SettingRow(
    flag="--verbose",
    short="-v",
    help="Show all that is known of each strategy",
    panel=Panel.OUTPUT,
)
HTML = SettingRow(
    flag="--html",
    help="Also write a page: pictures, and sliders for other settings",
    panel=Panel.OUTPUT,
)
SVG = SettingRow(flag="--svg", help="Also write what is shown as a drawing", panel=Panel.OUTPUT)
AS_JSON = SettingRow(flag="--json", help="Print one JSON object on stdout", panel=Panel.OUTPUT)
DRY_RUN = SettingRow(
    flag="--dry-run", help="Show what would be done, and do nothing", panel=Panel.OUTPUT
)
FORCE = SettingRow(
    flag="--force", help="Overwrite files; use what does not fit", panel=Panel.OUTPUT
)
QUIET = SettingRow(
    flag="--quiet", short="-q", help="Show errors and results only", panel=Panel.OUTPUT
)
