"""Understand a command of another launcher, such as `torchrun --nproc_per_node 8 train.py`.

zerowiz takes its place: what it says of ranks, nodes and DeepSpeed becomes settings, and what it
does for the ranks to meet is done by DeepSpeed's own launcher.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from itertools import dropwhile

from msgspec import Struct

from zerowiz.core import shell
from zerowiz.core.script.settings_file import YAML_SUFFIXES
from zerowiz.errors import UsageError, did_you_mean

# The options of other launchers, and what zerowiz makes of each.
#
# torch 2.13, torch/distributed/run.py, get_args_parser; accelerate 1.15, commands/launch.py,
# launch_command_parser; deepspeed 0.19.8, launcher/runner.py, parse_args; CPython's `python
# --help`. `tests/core/launch/test_other_launchers.py` holds the tables to these parsers.

# What is no setting of its own: the ranks of all nodes, DeepSpeed's devices of accelerate, the kind
# of target, and the word that the launcher would not pass.
ALL_RANKS = "all_ranks"
OPTIMIZER_DEVICE, PARAMETER_DEVICE = "optimizer_device", "parameter_device"
IS_MODULE = "is_module"
NO_LOCAL_RANK = "no_local_rank"
_COUNTS = frozenset({"gpus_per_node", "nodes", "accumulation_steps", ALL_RANKS})


class Fate(StrEnum):
    """What becomes of an option."""

    SETS = "sets"
    """A setting of zerowiz says the same."""
    OURS = "ours"
    """zerowiz, or DeepSpeed under it, does the same by itself."""
    LOST = "lost"
    """It has no effect, and is named."""
    REFUSED = "refused"
    """It would be another job."""


class LauncherOption(Struct, frozen=True, kw_only=True):
    """One option of another launcher, and which setting its word says."""

    takes_word: bool
    fate: Fate = Fate.SETS
    setting: str = ""
    pattern: str = "(.+)"
    """Of the words that it takes; the group is the value, and without one nothing is said."""
    hint: str = ""
    """What to do about another word."""
    values: Mapping[str, object] | None = None
    """The value of each word that it takes; None where the pattern decides."""

    def read(self, word: str) -> Mapping[str, object]:
        """The setting that its word says; empty where it says none.

        Raises:
            ValueError: It does not take this word; the text says what to do.
        """
        if self.fate is not Fate.SETS:
            return {}
        if self.values is not None:
            if word not in self.values:
                raise ValueError(f"use one of {', '.join(self.values)}")
            value = self.values[word]
        else:
            match = re.fullmatch(self.pattern, word)
            if match is None:
                raise ValueError(self.hint)
            value = int(match[1]) if match[1] and self.setting in _COUNTS else match[1]
        return {} if value is None else {self.setting: value}


def _each(fate: Fate, names: str, *, takes_word: bool) -> dict[str, LauncherOption]:
    return dict.fromkeys(names.split(), LauncherOption(takes_word=takes_word, fate=fate))


def _text(setting: str, pattern: str = "(.+)", hint: str = "") -> LauncherOption:
    return LauncherOption(takes_word=True, setting=setting, pattern=pattern, hint=hint)


def _count(setting: str, others: str = "") -> LauncherOption:
    return _text(setting, rf"([1-9]\d*){others}", "it must be a whole number of at least 1")


def _switch(setting: str, value: object = True) -> LauncherOption:
    return LauncherOption(takes_word=False, setting=setting, values={"": value})


def _choice(setting: str, values: Mapping[str, object]) -> LauncherOption:
    return LauncherOption(takes_word=True, setting=setting, values=values)


_DEVICES = {"none": "none", "cpu": "cpu"}
_INCLUDE = _text(
    "gpus",
    r"(?:localhost|127\.0\.0\.1)(?::([^@]+))?",
    "zerowiz uses every slot of `$hostfile`: write one with these slots only",
)
_EXCLUDE = _text(
    "gpus", "()", "select the others: `$gpus 0,1`, or a `$hostfile` with those hosts only"
)

TORCHRUN: Mapping[str, LauncherOption] = {
    "--nnodes": _count("nodes", r"(?::\1)?"),
    "--nproc_per_node": _count("gpus_per_node", "|gpu|auto"),
    **dict.fromkeys(("-m", "--module"), _switch(IS_MODULE)),
    **_each(
        Fate.OURS,
        "--rdzv_backend --rdzv_endpoint --rdzv_id --rdzv_conf --role --node_rank --master_addr "
        "--master_port --local_addr --start_method",
        takes_word=True,
    ),
    **_each(Fate.OURS, "--standalone", takes_word=False),
    **_each(
        Fate.LOST,
        "--max_restarts --monitor_interval --event_log_handler --log_dir -r --redirects -t --tee "
        "--local_ranks_filter --duplicate_stdout_filters --duplicate_stderr_filters --logs_specs "
        "--numa_binding --signals_to_handle --shutdown_timeout",
        takes_word=True,
    ),
    **_each(Fate.REFUSED, "--no_python --run_path --virtual_local_rank", takes_word=False),
}
# torch 2.13, torch/distributed/launch.py.
TORCH_LAUNCH = {**TORCHRUN, **_each(Fate.OURS, "--use_env", takes_word=False)}

ACCELERATE: Mapping[str, LauncherOption] = {
    **dict.fromkeys(("--config_file", "--deepspeed_config_file"), _text("config")),
    "--num_processes": _count(ALL_RANKS),
    "--num_machines": _count("nodes"),
    "--gpu_ids": _text("gpus", "all|(.+)"),
    "--cpu": _switch("accelerator", "cpu"),
    **dict.fromkeys(("-m", "--module"), _switch(IS_MODULE)),
    "--mixed_precision": _choice("precision", {"no": "fp32", "fp16": "fp16", "bf16": "bf16"}),
    "--zero_stage": _choice("stage", {stage: stage for stage in "0123"}),
    "--gradient_accumulation_steps": _count("accumulation_steps"),
    "--offload_optimizer_device": _choice(OPTIMIZER_DEVICE, _DEVICES),
    "--offload_param_device": _choice(PARAMETER_DEVICE, _DEVICES),
    "--deepspeed_hostfile": _text("hostfile"),
    "--deepspeed_inclusion_filter": _INCLUDE,
    "--deepspeed_exclusion_filter": _EXCLUDE,
    "--deepspeed_multinode_launcher": _choice("", {"standard": None, "pdsh": None}),
    **_each(Fate.OURS, "--multi_gpu --use_deepspeed --same_network", takes_word=False),
    **_each(
        Fate.OURS,
        "--machine_rank --main_process_ip --main_process_port --rdzv_backend --rdzv_conf --role",
        takes_word=True,
    ),
    **_each(
        Fate.LOST,
        "--num_cpu_threads_per_process -t --tee --log_dir --max_restarts --monitor_interval "
        "--dynamo_backend --dynamo_mode --gradient_clipping --zero3_init_flag "
        "--zero3_save_16bit_model --deepspeed_moe_layer_cls_names",
        takes_word=True,
    ),
    **_each(
        Fate.LOST,
        "--quiet -q --debug --enable_cpu_affinity --dynamo_use_fullgraph --dynamo_use_dynamic "
        "--dynamo_use_regional_compilation",
        takes_word=False,
    ),
    **_each(
        Fate.REFUSED,
        "--tpu --use_fsdp --use_parallelism_config --use_megatron_lm --no_python --tpu_cluster "
        "--no_tpu_cluster --tpu_use_sudo --downcast_bf16",
        takes_word=False,
    ),
    # A star stands for all that begin so: they belong to another engine than DeepSpeed.
    **_each(
        Fate.REFUSED,
        "--vm --env --main_training_function --mpirun_hostfile --aws_access_key_id "
        "--aws_secret_access_key --offload_optimizer_nvme_path --offload_param_nvme_path "
        "--fsdp_* --megatron_lm_* --fp8_* --parallelism_config_*",
        takes_word=True,
    ),
}

DEEPSPEED: Mapping[str, LauncherOption] = {
    **dict.fromkeys(("-H", "--hostfile"), _text("hostfile")),
    **dict.fromkeys(("-i", "--include"), _INCLUDE),
    **dict.fromkeys(("-e", "--exclude"), _EXCLUDE),
    "--num_nodes": _count("nodes"),
    **dict.fromkeys(("--num_gpus", "--num_accelerators"), _count("gpus_per_node")),
    "--launcher": _choice("", {"pdsh": None}),
    "--module": _switch(IS_MODULE),
    "--no_local_rank": _switch(NO_LOCAL_RANK),
    **_each(Fate.OURS, "--master_port --master_addr --node_rank", takes_word=True),
    **_each(Fate.OURS, "--no_ssh --no_ssh_check --force_multi", takes_word=False),
    **_each(Fate.LOST, "--enable_each_rank_log --bind_core_list --log_level", takes_word=True),
    **_each(Fate.LOST, "--save_pid --bind_cores_to_rank -q --quiet", takes_word=False),
    **_each(Fate.REFUSED, "--launcher_args --autotuning --ssh_port --venv_script", takes_word=True),
    **_each(Fate.REFUSED, "--no_python", takes_word=False),
}

# `-m` takes the module, which ends the options.
PYTHON: Mapping[str, LauncherOption] = {
    "-m": _switch(IS_MODULE),
    **_each(Fate.OURS, "-u", takes_word=False),
    **_each(Fate.LOST, "-b -B -d -E -I -O -OO -P -q -s -S -v -x", takes_word=False),
    **_each(Fate.LOST, "-W -X --check_hash_based_pycs", takes_word=True),
    **_each(Fate.REFUSED, "-i -V -h --help --version", takes_word=False),
    **_each(Fate.REFUSED, "-c", takes_word=True),
}

LAUNCHERS: Mapping[tuple[str, ...], Mapping[str, LauncherOption]] = {
    ("torchrun",): TORCHRUN,
    ("accelerate", "launch"): ACCELERATE,
    ("accelerate-launch",): ACCELERATE,
    ("deepspeed",): DEEPSPEED,
}
"""By the words that start them; `python`, `python3.12` beside these."""

MODULES: Mapping[str, Mapping[str, LauncherOption]] = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCH_LAUNCH,
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
}
"""By the module that `python -m` runs."""

_PYTHON_NAME = re.compile(r"python(3(\.\d+)?t?)?")


class OtherCommand(Struct, frozen=True, kw_only=True):
    """What a command of another launcher says."""

    words: tuple[str, ...]
    """The launcher and its options, as they were typed."""
    target: str
    """The script, or the module."""
    is_module: bool
    args: tuple[str, ...]
    """What follows the target."""
    settings: Mapping[str, object]
    """Plain values by the names of zerowiz's settings."""
    said_by: Mapping[str, str]
    """The words that say each of them."""
    lost: tuple[str, ...]
    """The options without effect, with their words."""
    no_local_rank: bool = False
    """Whether DeepSpeed's own option said so."""


def is_launcher(word: str) -> bool:
    """Whether a word may be the first of another launcher's command."""
    return word in {name[0] for name in LAUNCHERS} or _PYTHON_NAME.fullmatch(word) is not None


def launcher_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words that start another launcher; empty where they start none."""
    folder, _, base = (words[0] if words else "").rpartition("/")
    # A path may be a script of that name; one in a `bin` is the program.
    program = base if not folder or folder.rpartition("/")[2] == "bin" else ""
    if _PYTHON_NAME.fullmatch(program):
        return (program,)
    starts = (name for name in LAUNCHERS if (program, *words[1 : len(name)]) == name)
    return next(starts, ())


def read_command(words: Sequence[str]) -> OtherCommand | None:
    """A command of another launcher; None where the first word starts none.

    Args:
        words: All words, the launcher first.

    Raises:
        UsageError: An option that it does not have, or that zerowiz cannot stand in for.

    Example:
        >>> command = read_command(["torchrun", "--nproc_per_node", "8", "train.py", "--lr", "1"])
        >>> command.settings, command.target, command.args
        ({'gpus_per_node': 8}, 'train.py', ('--lr', '1'))
    """
    name = launcher_words(words)
    if not name:
        return None
    typed = _Typed(words, len(name))
    typed.read_options(LAUNCHERS.get(name, PYTHON))
    module = typed.words[typed.at] if name not in LAUNCHERS and typed.at < len(words) else ""
    if IS_MODULE in typed.settings and module in MODULES:
        typed.at += 1
        del typed.settings[IS_MODULE]
        typed.read_options(MODULES[module])
    return typed.command()


def find_option(options: Mapping[str, LauncherOption], flag: str) -> tuple[str, ...]:
    """The options of a launcher that a word may mean: a unique beginning stands for one."""
    name = "--" + flag[2:].replace("-", "_") if flag.startswith("--") else flag
    if name in options:
        return (name,)
    families = (each for each in options if each[-1] == "*" and name.startswith(each[:-1]))
    if family := next(families, None):
        return (family,)
    return tuple(each for each in options if name.startswith("--") and each.startswith(name))


class _Typed:
    """Reads the words of a command, one after the other.

    Args:
        words: All of them.
        at: Where the first option is.
    """

    def __init__(self, words: Sequence[str], at: int) -> None:
        self.words = [*words]
        self.at = at
        self.settings: dict[str, object] = {}
        self._said_by: dict[str, str] = {}
        self._lost: list[str] = []

    @property
    def _read(self) -> str:
        return " ".join(self.words[: self.at])

    def read_options(self, options: Mapping[str, LauncherOption]) -> None:
        """Read the options of a launcher; of python those before the module."""
        ends = options is PYTHON
        while self.at < len(self.words) and self.words[self.at].startswith("-"):
            if self.words[self.at] == "--":
                self.at += 1
                return
            self._read_option(options)
            if ends and IS_MODULE in self.settings:
                return

    def _read_option(self, options: Mapping[str, LauncherOption]) -> None:
        before, start = self._read, self.at
        flag, equals, value = self.words[self.at].partition("=")
        option = options[self._find(options, flag)]
        if option.fate is Fate.REFUSED:
            raise UsageError(
                f"`{before} {flag}`: zerowiz starts DeepSpeed jobs, which have no `{flag}`",
                "remove it, or start this job without zerowiz",
            )
        self.at += 1
        if option.takes_word and not equals:
            if self.at == len(self.words):
                raise UsageError(f"`{self._read}`: `{flag}` needs a value")
            value = self.words[self.at]
            self.at += 1
        said = " ".join(self.words[start : self.at])
        if option.fate is Fate.LOST:
            self._lost.append(said)
        try:
            values = option.read(value if option.takes_word else "")
        except ValueError as error:
            raise UsageError(f"`{said}`: {error}") from None
        self.settings |= values
        self._said_by |= dict.fromkeys(values, said)

    def _find(self, options: Mapping[str, LauncherOption], flag: str) -> str:
        names = find_option(options, flag)
        if len(names) == 1:
            return names[0]
        if names:
            meant = " or ".join(f"`{name}`" for name in names[:4])
            raise UsageError(f"`{self._read} {flag}`: `{flag}` could mean {meant}")
        raise UsageError(
            f"`{self._read} {flag}`: `{flag}` is not an option that zerowiz knows",
            *did_you_mean(get_close_matches(flag.replace("-", "_"), options, n=1)),
            "remove it: zerowiz starts the ranks with deepspeed, and reads the options before"
            " SCRIPT",
        )

    def command(self) -> OtherCommand:
        """What was read.

        Raises:
            UsageError: No script follows, or the options contradict each other.
        """
        if self.at >= len(self.words):
            raise UsageError(
                f"`{self._read}` has no script", f"`zerowiz launch {self._read} train.py`"
            )
        settings, said_by = self.settings, self._said_by
        is_module = bool(settings.pop(IS_MODULE, False))
        no_local_rank = bool(settings.pop(NO_LOCAL_RANK, False))
        _settle_ranks(settings, said_by)
        _settle_offload(settings, said_by)
        target, *args = self.words[self.at :]
        return OtherCommand(
            words=tuple(self.words[: self.at]),
            target=target,
            is_module=is_module,
            args=tuple(args),
            settings=settings,
            said_by={name: words for name, words in said_by.items() if name in settings},
            lost=tuple(self._lost),
            no_local_rank=no_local_rank,
        )


def _settle_ranks(settings: dict[str, object], said_by: dict[str, str]) -> None:
    """The ranks of each node, of all ranks; and GPUs that are named, beside their number."""
    total, nodes = settings.pop(ALL_RANKS, None), settings.get("nodes", 1)
    if isinstance(total, int) and isinstance(nodes, int):
        settings["gpus_per_node"], rest = divmod(total, nodes)
        said_by["gpus_per_node"] = said_by[ALL_RANKS]
        if rest:
            raise UsageError(
                f"`{said_by[ALL_RANKS]}`: {total} ranks cannot be divided equally over "
                f"{nodes} nodes"
            )
    gpus, count = settings.get("gpus"), settings.get("gpus_per_node")
    if gpus is None or count is None:
        return
    if len(str(gpus).split(",")) != count:
        raise UsageError(
            f"`{said_by['gpus']}` conflicts with `{said_by['gpus_per_node']}`", "remove one of them"
        )
    del settings["gpus_per_node"]


# By accelerate's devices of the optimizer and of the parameters.
_OFFLOAD = {("cpu", "cpu"): "all", ("cpu", "none"): "optimizer", ("none", "none"): "none"}


def _settle_offload(settings: dict[str, object], said_by: dict[str, str]) -> None:
    """Accelerate's devices of the optimizer and the parameters, as one setting."""
    names = [name for name in (OPTIMIZER_DEVICE, PARAMETER_DEVICE) if name in settings]
    if not names:
        return
    said_by["offload"] = " ".join(said_by[name] for name in names)
    devices = [settings.pop(name, "none") for name in (OPTIMIZER_DEVICE, PARAMETER_DEVICE)]
    offload = _OFFLOAD.get((str(devices[0]), str(devices[1])))
    if offload is None:
        raise UsageError(
            f"`{said_by['offload']}`: zerowiz offloads parameters only together with the optimizer",
            "offload both with `$offload all`",
        )
    settings["offload"] = offload


# Say what zerowiz takes in the place of a program that starts ranks of its own.

# What trains with each program, and the way.
TRAINERS: Mapping[str, tuple[frozenset[str], str]] = {
    "axolotl": (frozenset({"train"}), "pass its YAML file: `zerowiz init {path}`"),
    "llamafactory-cli": (frozenset({"train"}), "pass its YAML file: `zerowiz init {path}`"),
    "swift": (
        frozenset({"pt", "rlhf", "sft"}),
        "pass its arguments in a YAML file: `zerowiz init {path}`",
    ),
    "trl": (
        frozenset({"dpo", "grpo", "kto", "reward", "rloo", "sft"}),
        "launch its module: `zerowiz launch -m trl.scripts.{module}`",
    ),
}
PREFIXES = frozenset({"env", "exec", "nice", "nohup", "numactl", "poetry", "srun", "time", "uv"})
"""Programs that start the one that their words name."""
# What stands before a program in a line of a shell script, beside those.
_BEFORE = re.compile(r"[A-Za-z_]\w*=.*|-.*|\d+|run")


def name_way(program: str, words: Sequence[str]) -> str:
    """What zerowiz takes in the place of a program of TRAINERS.

    Args:
        program: Its name.
        words: The words after it.
    """
    path = next((word for word in words if word.endswith(YAML_SUFFIXES)), "my.yaml")
    return TRAINERS[program][1].format(path=shell.quote(path), module=shell.join(words) or "sft")


def find_trainer(text: str) -> tuple[str, ...] | None:
    r"""A program of TRAINERS that a shell script trains with, and its words; None for none.

    Example:
        >>> find_trainer("export A=1\nNPROC_PER_NODE=8 swift sft my.yaml")
        ('swift', 'sft', 'my.yaml')
    """
    for line in text.replace("\\\n", " ").splitlines():
        try:
            typed = shlex.split(line, comments=True)
        except ValueError:
            continue  # a quote that ends on another line
        words = tuple(dropwhile(lambda w: w in PREFIXES or bool(_BEFORE.fullmatch(w)), typed))
        if len(words) > 1 and words[0] in TRAINERS and words[1] in TRAINERS[words[0]][0]:
            return words
    return None
