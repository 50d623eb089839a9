"""The row of a setting: how it is said on a command line, described, and shown.

A setting is a field of a typed class, and its row stands in the field's annotation. So the class is
the table: options, help, JSON, assumptions and comparison rows are made from it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import get_args

from msgspec import Struct

from zerowiz.translation import N_, _

Change = Mapping[str, int | str | bool]
"""Settings by the names of their fields, with the plain values that they are to have."""


class Panel(StrEnum):
    """The headings under which `--help` lists options."""

    MODEL = N_("Model")
    MACHINE = N_("Machine")
    JOB = N_("Training step")
    CHOICE = N_("Choice")
    LENGTH = N_("Time and cost")
    OUTPUT = N_("Output")


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
    default: str | None = None
    """What it is where nobody says it, for `--help`; None: its value in Workload, or nothing."""
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
    least: int = 1
    """The smallest count that it can be."""
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
    for arg in get_args(annotation):
        if isinstance(arg, SettingRow):
            return arg
    raise TypeError(f"{annotation} has no SettingRow")


# The settings that are no part of a training step. Those that are have their row in `Workload`.
MODEL = SettingRow(
    flag="--model",
    help=_("Folder, hub id, name (llama-3.1-8b) or size (7b)"),
    panel=Panel.MODEL,
    value="<model>",
    default=_("the one that your script names"),
)
TRACE = SettingRow(
    flag="--trace/--no-trace",
    help=_("Run the model on the meta device to count it exactly"),
    panel=Panel.MODEL,
    default=_("for a family that zerowiz does not know"),
)
MACHINE = SettingRow(
    flag="--machine",
    help=_("File, spec (4xA100-40GB) or instance (p5.48xlarge); `plan` also takes `all`"),
    panel=Panel.MACHINE,
    value="<machine>",
    default=_("this one"),
)
ACCELERATOR = SettingRow(
    flag="--accelerator",
    help=_("Accelerator that DeepSpeed uses"),
    panel=Panel.MACHINE,
    default=_("cuda, or what your script or DS_ACCELERATOR says"),
)
GPUS = SettingRow(
    flag="--gpus",
    help=_("NVML indices to use: 0,2,3"),
    panel=Panel.MACHINE,
    value="<list>",
    default=_("all that are visible"),
)
NODES = SettingRow(
    flag="--nodes",
    help=_("Number of nodes, all alike"),
    panel=Panel.MACHINE,
    default=_("1, or those of the scheduler's job"),
)
GPUS_PER_NODE = SettingRow(
    flag="--gpus-per-node",
    help=_("GPUs (or CPU ranks) per node"),
    panel=Panel.MACHINE,
    default=_("all GPUs, or 1 CPU rank"),
)
HOSTFILE = SettingRow(
    flag="--hostfile",
    help=_("DeepSpeed hostfile: one `host slots=N` per line"),
    panel=Panel.MACHINE,
)
INTERCONNECT = SettingRow(
    flag="--interconnect",
    help=_("Links that zerowiz cannot detect: nvlink, infiniband:400Gb/s"),
    panel=Panel.MACHINE,
    value="<links>",
    default=_("detected"),
)
HOST_MEMORY = SettingRow(
    flag="--host-memory",
    help=_("Memory of each node's host: 1TiB, 512GB"),
    panel=Panel.MACHINE,
    value="<amount>",
    default=_("what is available"),
)
PROBE_TIMEOUT = SettingRow(
    flag="--probe-timeout",
    help=_("Timeout of a call to the NVIDIA driver, in seconds"),
    value="<seconds>",
    default="30",
    panel=Panel.MACHINE,
)
MEMORY_BUDGET = SettingRow(
    flag="--memory-budget",
    help=_("Memory per GPU: 30GiB, 24GB, bytes, or a fraction"),
    panel=Panel.MACHINE,
    value="<amount>",
    default=_("what is free"),
)
GLOBAL_BATCH = SettingRow(
    flag="--global-batch",
    help=_("Sequences per optimizer step, over all GPUs"),
    panel=Panel.JOB,
    default=_("micro-batch x accumulation x GPUs"),
)
OBJECTIVE = SettingRow(
    flag="--objective",
    help=_("How to choose: by the flowchart, the fastest step, or the least memory"),
    panel=Panel.CHOICE,
    default="flowchart",
)
STAGE = SettingRow(
    flag="--stage",
    help=_("ZeRO stage"),
    panel=Panel.CHOICE,
    default="auto",
)
OFFLOAD = SettingRow(
    flag="--offload",
    help=_("What to offload to host memory"),
    panel=Panel.CHOICE,
    default=_("as the flowchart says; none with --stage"),
)
NVME_PATH = SettingRow(
    flag="--nvme-path",
    help=_("Offload to this folder on NVMe (stage 3)"),
    panel=Panel.CHOICE,
)
HPZ = SettingRow(
    flag="--hpz/--no-hpz",
    help=_("Stage 3: each node keeps a copy of the weights"),
    panel=Panel.CHOICE,
    default=_("where it pays"),
)
QUANTIZED_WEIGHTS = SettingRow(
    flag="--quantized-weights", help=_("Stage 3: gather the weights in int8"), panel=Panel.CHOICE
)
ALLOW_SLOW = SettingRow(
    flag="--allow-slow", help=_("Allow ZeRO-3 over a slow link"), panel=Panel.CHOICE
)
IGNORE_OOM = SettingRow(
    flag="--ignore-oom",
    help=_("Ignore earlier out-of-memory errors on this machine"),
    panel=Panel.CHOICE,
)
CALIBRATION = SettingRow(
    flag="--calibration/--no-calibration",
    help=_("Scale times by what `measure` found on this machine"),
    panel=Panel.CHOICE,
    default="on",
)
ACCOUNTING = SettingRow(
    flag="--accounting",
    help=_("Count what DeepSpeed allocates, or use the rule of thumb"),
    panel=Panel.CHOICE,
    default="real",
)
INTEGRATION = SettingRow(
    flag="--integration",
    help=_("Which library passes the config to DeepSpeed"),
    panel=Panel.CHOICE,
    default=_("detected in your script"),
)
CONFIG_VIA = SettingRow(
    flag="--config-via",
    help=_("How the script gets the config: flag:NAME, env, file:PATH, none"),
    panel=Panel.CHOICE,
    value="<way>",
    default=_("detected in your script"),
)
CONFIG = SettingRow(
    flag="--config", help=_("Use this DeepSpeed config unchanged"), panel=Panel.CHOICE
)
MODULE = SettingRow(
    flag="--module",
    short="-m",
    help=_("Run SCRIPT as a module, like `python -m`"),
    panel=Panel.CHOICE,
)
TOKENS = SettingRow(
    flag="--tokens",
    help=_("Tokens per epoch: 2B, 500M"),
    panel=Panel.LENGTH,
    value="<count>",
)
SEQUENCES = SettingRow(
    flag="--sequences",
    help=_("Sequences per epoch, of --seq-len tokens: 52k"),
    panel=Panel.LENGTH,
    value="<count>",
)
EPOCHS = SettingRow(
    flag="--epochs",
    help=_("Number of epochs"),
    panel=Panel.LENGTH,
    default=_("your script's, or 1"),
)
PRICE = SettingRow(
    flag="--price",
    help=_("Price: 2.50/gpu-hour, 32/node-hour, NAME=..., or a file"),
    panel=Panel.LENGTH,
    value="<price>",
)
OUTPUT_DIR = SettingRow(
    flag="--output-dir",
    help=_("Folder for the configs"),
    panel=Panel.OUTPUT,
    default=_("this folder"),
)
ISOLATED = SettingRow(
    flag="--isolated", help=_("Ignore zerowiz.toml, the answers file"), panel=Panel.OUTPUT
)
ORIGINS = SettingRow(
    flag="--origins", help=_("Show where each setting comes from"), panel=Panel.OUTPUT
)
YES = SettingRow(flag="--yes", short="-y", help=_("Ask nothing"), panel=Panel.OUTPUT)
LIMITS = SettingRow(
    flag="--limits",
    help=_("Show the largest micro-batch and the longest sequence that fit"),
    panel=Panel.OUTPUT,
)
COMPARE = SettingRow(
    flag="--compare",
    help=_("Compare with a plan in which these options differ: --compare --machine 8xH100-80GB"),
    value="<options>...",
    panel=Panel.OUTPUT,
)
EXPLAIN = SettingRow(
    flag="--explain",
    value="[<strategy>]",
    help=_("Show what takes time and memory in the chosen strategy, or in another: zero2"),
    panel=Panel.OUTPUT,
)
VERBOSE = SettingRow(
    flag="--verbose",
    short="-v",
    help=_("Show more columns for each strategy"),
    panel=Panel.OUTPUT,
)
HTML = SettingRow(
    flag="--html",
    help=_("Also write an HTML page, with pictures and sliders for other settings"),
    panel=Panel.OUTPUT,
)
SVG = SettingRow(flag="--svg", help=_("Also write the plan as a picture (SVG)"), panel=Panel.OUTPUT)
AS_JSON = SettingRow(flag="--json", help=_("Print one JSON object on stdout"), panel=Panel.OUTPUT)
DRY_RUN = SettingRow(
    flag="--dry-run", help=_("Show what would happen, and change nothing"), panel=Panel.OUTPUT
)
FORCE = SettingRow(
    flag="--force",
    help=_("Overwrite files, and use a strategy that does not fit"),
    panel=Panel.OUTPUT,
)
QUIET = SettingRow(
    flag="--quiet", short="-q", help=_("Show errors and results only"), panel=Panel.OUTPUT
)
