"""Understand a command of another launcher, such as `torchrun --nproc_per_node 8 train.py`.

zerowiz takes its place: what it says of ranks, nodes and DeepSpeed becomes settings, and what it
does for the ranks to meet is done by DeepSpeed's own launcher.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from zerowiz.core.launch.plan import Launcher
from zerowiz.errors import UsageError, did_you_mean

# The options of other launchers, and what zerowiz makes of each.
#
# torch 2.13, torch/distributed/run.py, get_args_parser; accelerate 1.15, commands/launch.py,
# launch_command_parser; deepspeed 0.19.8, launcher/runner.py, parse_args; CPython's `python
# --help`. `tests/core/launch/test_other_launchers.py` holds the tables to these parsers.

Values: TypeAlias = Mapping[str, object]
"""By the names of zerowiz's settings, and of the keys below."""

# What is no setting of its own: the ranks of all nodes, DeepSpeed's devices of accelerate, the kind
# of target, the word that the launcher would not pass, and what reaches the nodes of a hostfile.
ALL_RANKS = "all_ranks"
OPTIMIZER_DEVICE, PARAMETER_DEVICE = "optimizer_device", "parameter_device"
IS_MODULE = "is_module"
NO_LOCAL_RANK = "no_local_rank"
LAUNCHER = "launcher"


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


Reader: TypeAlias = Callable[[str], Values]


class LauncherOption(Struct, frozen=True, kw_only=True):
    """One option of another launcher."""

    takes_word: bool
    fate: Fate = Fate.SETS
    read: Reader = lambda _word: {}
    """What its word says; a ValueError says what is wrong with it."""


def _switches(meaning: Fate | Reader, *names: str) -> dict[str, LauncherOption]:
    return dict.fromkeys(names, _option(meaning, takes_word=False))


def _values(meaning: Fate | Reader, *names: str) -> dict[str, LauncherOption]:
    return dict.fromkeys(names, _option(meaning, takes_word=True))


def _option(meaning: Fate | Reader, *, takes_word: bool) -> LauncherOption:
    if isinstance(meaning, Fate):
        return LauncherOption(takes_word=takes_word, fate=meaning)
    return LauncherOption(takes_word=takes_word, read=meaning)


def _count(setting: str) -> Reader:
    def read(word: str) -> Values:
        if not word.isdecimal() or int(word) < 1:
            raise ValueError("it must be a whole number of at least 1")
        return {setting: int(word)}

    return read


def _text(setting: str) -> Reader:
    return lambda word: {setting: word}


def _on(setting: str) -> Reader:
    return lambda _word: {setting: True}


def _chosen(setting: str, names: Mapping[str, object]) -> Reader:
    def read(word: str) -> Values:
        if word not in names:
            raise ValueError(f"use one of {', '.join(names)}")
        value = names[word]
        return {} if value is None else {setting: value}

    return read


def _ranks(word: str) -> Values:
    """Torchrun's ranks of each node: a number, or all GPUs."""
    if word in {"gpu", "auto"}:
        return {}
    if word == "cpu":
        raise ValueError("set the number of CPU ranks: `$accelerator cpu $gpus_per_node 2`")
    return _count("gpus_per_node")(word)


def _torch_nodes(word: str) -> Values:
    """Torchrun's number of nodes, or a range of it."""
    fewest, _colon, most = word.partition(":")
    if most and most != fewest:
        raise ValueError("set a fixed number of nodes: `$nodes 2`")
    return _count("nodes")(fewest)


def _include(word: str) -> Values:
    """DeepSpeed's `localhost:0,1`."""
    host, _colon, slots = word.partition(":")
    if host not in {"localhost", "127.0.0.1"} or "@" in word:
        raise ValueError("zerowiz uses every slot of `$hostfile`: write one with these slots only")
    return {"gpus": slots} if slots else {}


def _exclude(word: str) -> Values:
    if word:
        raise ValueError("select the others: `$gpus 0,1`, or a `$hostfile` with those hosts only")
    return {}


_TORCHRUN: Mapping[str, LauncherOption] = {
    **_values(_torch_nodes, "--nnodes"),
    **_values(_ranks, "--nproc_per_node"),
    **_switches(_on(IS_MODULE), "-m", "--module"),
    **_values(
        Fate.OURS,
        *("--rdzv_backend", "--rdzv_endpoint", "--rdzv_id", "--rdzv_conf", "--role"),
        *("--node_rank", "--master_addr", "--master_port", "--local_addr", "--start_method"),
    ),
    **_switches(Fate.OURS, "--standalone"),
    **_values(
        Fate.LOST,
        *("--max_restarts", "--monitor_interval", "--event_log_handler", "--log_dir", "-r"),
        *("--redirects", "-t", "--tee", "--local_ranks_filter", "--duplicate_stdout_filters"),
        *("--duplicate_stderr_filters", "--logs_specs", "--numa_binding", "--signals_to_handle"),
        "--shutdown_timeout",
    ),
    **_switches(Fate.REFUSED, "--no_python", "--run_path", "--virtual_local_rank"),
}
# torch 2.13, torch/distributed/launch.py.
_TORCH_LAUNCH = {**_TORCHRUN, **_switches(Fate.OURS, "--use_env")}

_DEVICES = {"none": "none", "cpu": "cpu"}
_ACCELERATE: Mapping[str, LauncherOption] = {
    **_values(_text("config"), "--config_file", "--deepspeed_config_file"),
    **_values(_count(ALL_RANKS), "--num_processes"),
    **_values(_count("nodes"), "--num_machines"),
    **_values(lambda word: {} if word == "all" else {"gpus": word}, "--gpu_ids"),
    **_switches(lambda _word: {"accelerator": "cpu"}, "--cpu"),
    **_switches(_on(IS_MODULE), "-m", "--module"),
    **_values(
        _chosen("precision", {"no": "fp32", "fp16": "fp16", "bf16": "bf16"}), "--mixed_precision"
    ),
    **_values(_chosen("stage", {stage: stage for stage in "0123"}), "--zero_stage"),
    **_values(_count("accumulation_steps"), "--gradient_accumulation_steps"),
    **_values(_chosen(OPTIMIZER_DEVICE, _DEVICES), "--offload_optimizer_device"),
    **_values(_chosen(PARAMETER_DEVICE, _DEVICES), "--offload_param_device"),
    **_values(_text("hostfile"), "--deepspeed_hostfile"),
    **_values(_include, "--deepspeed_inclusion_filter"),
    **_values(_exclude, "--deepspeed_exclusion_filter"),
    **_values(
        _chosen(
            LAUNCHER,
            {"standard": None, **{launcher.value: launcher.value for launcher in Launcher}},
        ),
        "--deepspeed_multinode_launcher",
    ),
    **_switches(Fate.OURS, "--multi_gpu", "--use_deepspeed", "--same_network"),
    **_values(
        Fate.OURS,
        *("--machine_rank", "--main_process_ip", "--main_process_port", "--rdzv_backend"),
        *("--rdzv_conf", "--role"),
    ),
    **_values(
        Fate.LOST,
        *("--num_cpu_threads_per_process", "-t", "--tee", "--log_dir", "--max_restarts"),
        *("--monitor_interval", "--dynamo_backend", "--dynamo_mode", "--gradient_clipping"),
        *("--zero3_init_flag", "--zero3_save_16bit_model", "--deepspeed_moe_layer_cls_names"),
    ),
    **_switches(
        Fate.LOST,
        *("--quiet", "-q", "--debug", "--enable_cpu_affinity", "--dynamo_use_fullgraph"),
        *("--dynamo_use_dynamic", "--dynamo_use_regional_compilation"),
    ),
    **_switches(
        Fate.REFUSED,
        *("--tpu", "--use_fsdp", "--use_parallelism_config", "--use_megatron_lm", "--no_python"),
        *("--tpu_cluster", "--no_tpu_cluster", "--tpu_use_sudo", "--downcast_bf16"),
    ),
    **_values(
        Fate.REFUSED,
        *("--vm", "--env", "--main_training_function", "--mpirun_hostfile"),
        *("--aws_access_key_id", "--aws_secret_access_key", "--offload_optimizer_nvme_path"),
        "--offload_param_nvme_path",
    ),
}
# Options of accelerate that begin so take a word and belong to another engine than DeepSpeed.
_ACCELERATE_FAMILIES = ("--fsdp_", "--megatron_lm_", "--fp8_", "--parallelism_config_")

_DEEPSPEED: Mapping[str, LauncherOption] = {
    **_values(_text("hostfile"), "-H", "--hostfile"),
    **_values(_include, "-i", "--include"),
    **_values(_exclude, "-e", "--exclude"),
    **_values(_count("nodes"), "--num_nodes"),
    **_values(_count("gpus_per_node"), "--num_gpus", "--num_accelerators"),
    **_values(
        _chosen(LAUNCHER, {launcher.value: launcher.value for launcher in Launcher}), "--launcher"
    ),
    **_switches(_on(IS_MODULE), "--module"),
    **_switches(_on(NO_LOCAL_RANK), "--no_local_rank"),
    **_values(Fate.OURS, "--master_port", "--master_addr", "--node_rank"),
    **_switches(Fate.OURS, "--no_ssh", "--no_ssh_check", "--force_multi"),
    **_values(Fate.LOST, "--enable_each_rank_log", "--bind_core_list", "--log_level"),
    **_switches(Fate.LOST, "--save_pid", "--bind_cores_to_rank", "-q", "--quiet"),
    **_values(Fate.REFUSED, "--launcher_args", "--autotuning", "--ssh_port", "--venv_script"),
    **_switches(Fate.REFUSED, "--no_python"),
}

# `-m` takes the module, which ends the options.
_PYTHON: Mapping[str, LauncherOption] = {
    **_switches(_on(IS_MODULE), "-m"),
    **_switches(Fate.OURS, "-u"),
    **_switches(
        Fate.LOST,
        *("-b", "-B", "-d", "-E", "-I", "-O", "-OO", "-P", "-q", "-s", "-S", "-v", "-x"),
    ),
    **_values(Fate.LOST, "-W", "-X", "--check_hash_based_pycs"),
    **_switches(Fate.REFUSED, "-i", "-V", "-h", "--help", "--version"),
    **_values(Fate.REFUSED, "-c"),
}


class OtherLauncher(Struct, frozen=True, kw_only=True):
    """A program that people start trainings with."""

    options: Mapping[str, LauncherOption]
    """By their names with underscores."""
    refused_families: tuple[str, ...] = ()
    uses_argparse: bool = True
    """Whether a unique beginning of a long option stands for it, and `-H=hosts` is `-H hosts`."""

    def find(self, word: str) -> tuple[str, ...]:
        """The names of the options that a word may mean."""
        name = "--" + word[2:].replace("-", "_") if word.startswith("--") else word
        if name in self.options:
            return (name,)
        if not self.uses_argparse or not name.startswith("--"):
            return ()
        return tuple(option for option in self.options if option.startswith(name))

    def of_family(self, word: str) -> bool:
        """Whether an option belongs to another engine."""
        name = word.replace("-", "_").replace("__", "--", 1)
        return name.startswith(self.refused_families)


_TORCH = OtherLauncher(options=_TORCHRUN)
_ACCELERATE_LAUNCH = OtherLauncher(options=_ACCELERATE, refused_families=_ACCELERATE_FAMILIES)
_DEEPSPEED_RUNNER = OtherLauncher(options=_DEEPSPEED)
PYTHON = OtherLauncher(options=_PYTHON, uses_argparse=False)

LAUNCHERS: Mapping[tuple[str, ...], OtherLauncher] = {
    ("torchrun",): _TORCH,
    ("accelerate", "launch"): _ACCELERATE_LAUNCH,
    ("accelerate-launch",): _ACCELERATE_LAUNCH,
    ("deepspeed",): _DEEPSPEED_RUNNER,
}
"""By the words that start them; `python`, `python3.12` beside these."""

MODULES: Mapping[str, OtherLauncher] = {
    "torch.distributed.run": _TORCH,
    "torch.distributed.launch": OtherLauncher(options=_TORCH_LAUNCH),
    "accelerate.commands.launch": _ACCELERATE_LAUNCH,
    "deepspeed.launcher.runner": _DEEPSPEED_RUNNER,
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
    launcher: Launcher | None = None
    """What reaches the nodes of a hostfile."""


def is_launcher(word: str) -> bool:
    """Whether a word may be the first of another launcher's command."""
    names = {name[0] for name in LAUNCHERS}
    return word in names or _PYTHON_NAME.fullmatch(word) is not None


def read_command(words: Sequence[str]) -> OtherCommand | None:
    """A command of another launcher; None where the first word starts none.

    Args:
        words: All words, the launcher first.

    Raises:
        UsageError: An option that it does not have, or that zerowiz cannot stand in for.
    """
    name, launcher = _find_launcher(words)
    if launcher is None:
        return None
    typed = _Typed(words)
    typed.take(len(name))
    module = typed.read_options(launcher)
    if module is not None and module in MODULES:
        typed.take(1)
        typed.settings.pop(IS_MODULE)
        typed.read_options(MODULES[module])
    return typed.command()


def launcher_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words that start another launcher; empty where they start none."""
    return _find_launcher(words)[0]


def _find_launcher(words: Sequence[str]) -> tuple[tuple[str, ...], OtherLauncher | None]:
    first, *rest = words or ("",)
    folder, _, base = first.rpartition("/")
    # A path may be a script of that name; one in a `bin` is the program.
    program = base if not folder or folder.rpartition("/")[2] == "bin" else ""
    for name, launcher in LAUNCHERS.items():
        if (program, *rest[: len(name) - 1]) == name:
            return name, launcher
    if _PYTHON_NAME.fullmatch(program):
        return (program,), PYTHON
    return (), None


class _Typed:
    """Reads the words of a command, one after the other.

    Args:
        words: All of them.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)
        self._at = 0
        self.settings: dict[str, object] = {}
        self._said_by: dict[str, str] = {}
        self._lost: list[str] = []

    def take(self, count: int) -> None:
        """Go past these words."""
        self._at += count

    @property
    def _read(self) -> str:
        return " ".join(self._words[: self._at])

    def read_options(self, launcher: OtherLauncher) -> str | None:
        """Read the options of a launcher; the module, where the words name one."""
        while self._at < len(self._words) and self._words[self._at].startswith("-"):
            word = self._words[self._at]
            if word == "--":
                self._at += 1
                break
            self._read_option(launcher, word)
            if launcher is PYTHON and IS_MODULE in self.settings:
                break
        target = self._words[self._at] if self._at < len(self._words) else None
        return target if IS_MODULE in self.settings else None

    def _read_option(self, launcher: OtherLauncher, word: str) -> None:
        before = self._read
        flag, option = self._find_option(launcher, word)
        value, words = self._take_value(flag, takes_word=option.takes_word)
        if option.fate is Fate.REFUSED:
            raise _refused(before, flag)
        if option.fate is Fate.LOST:
            self._lost.append(words)
        try:
            values = option.read(value)
        except ValueError as error:
            raise UsageError(f"`{words}`: " + error.args[0]) from None
        self.settings |= values
        self._said_by |= dict.fromkeys(values, words)

    def _find_option(self, launcher: OtherLauncher, word: str) -> tuple[str, LauncherOption]:
        """The option that a word means, with its flag as it is written."""
        takes_sign = word.startswith("--") or launcher.uses_argparse
        flag = word.partition("=")[0] if takes_sign else word
        if launcher.of_family(flag):
            raise _refused(self._read, flag)
        names = launcher.find(flag)
        if not names and not word.startswith("--") and launcher.find(word[:2]):
            self._split_short(launcher, word)
            flag, names = word[:2], launcher.find(word[:2])
        if len(names) == 1:
            return flag, launcher.options[names[0]]
        if names:
            options = " or ".join(f"`{name}`" for name in names[:4])
            raise UsageError(f"`{self._read} {flag}`: `{flag}` could mean {options}")
        raise UsageError(
            f"`{self._read} {flag}`: `{flag}` is not an option that zerowiz knows",
            *did_you_mean(get_close_matches(flag.replace("-", "_"), launcher.options, n=1)),
            (
                "remove it: zerowiz starts the ranks with deepspeed, and reads the options "
                "before SCRIPT"
            ),
        )

    def _take_value(self, flag: str, *, takes_word: bool) -> tuple[str, str]:
        """The word of the option that is next, and the whole of it as it is written."""
        word = self._words[self._at]
        self._at += 1
        if not takes_word:
            return "", word
        if word != flag:
            return word.partition("=")[2], word
        if self._at == len(self._words):
            raise UsageError(f"`{self._read}`: `{flag}` needs a value")
        self._at += 1
        return self._words[self._at - 1], f"{flag} {self._words[self._at - 1]}"

    def _split_short(self, launcher: OtherLauncher, word: str) -> None:
        """Split `-Wignore` and `-mpkg.train` into two words, `-uB` into two options."""
        option = launcher.options[word[:2]]
        switch = not option.takes_word and word[:2] != "-m"
        parts = (word[:2], f"-{word[2:]}" if switch else word[2:])
        self._words = (*self._words[: self._at], *parts, *self._words[self._at + 1 :])

    def command(self) -> OtherCommand:
        """What was read.

        Raises:
            UsageError: No script follows, or the options contradict each other.
        """
        if self._at >= len(self._words):
            raise UsageError(
                f"`{self._read}` has no script",
                f"`zerowiz launch {self._read} train.py`",
            )
        settings, said_by = self.settings, self._said_by
        is_module = bool(settings.pop(IS_MODULE, False))
        no_local_rank = bool(settings.pop(NO_LOCAL_RANK, False))
        launcher = settings.pop(LAUNCHER, None)
        _settle_ranks(settings, said_by)
        _settle_offload(settings, said_by)
        target, *args = self._words[self._at :]
        return OtherCommand(
            words=self._words[: self._at],
            target=target,
            is_module=is_module,
            args=tuple(args),
            settings=settings,
            said_by={name: words for name, words in said_by.items() if name in settings},
            lost=tuple(self._lost),
            no_local_rank=no_local_rank,
            launcher=None if launcher is None else Launcher(str(launcher)),
        )


def _refused(launcher: str, words: str) -> UsageError:
    return UsageError(
        f"`{launcher} {words}`: zerowiz starts DeepSpeed jobs, which have no `{words}`",
        "remove it, or start this job without zerowiz",
    )


def _settle_ranks(settings: dict[str, object], said_by: dict[str, str]) -> None:
    """The ranks of each node, of all ranks; and GPUs that are named, beside their number."""
    total = settings.pop(ALL_RANKS, None)
    if isinstance(total, int):
        nodes = settings.get("nodes", 1)
        ranks, rest = divmod(total, nodes if isinstance(nodes, int) else 1)
        if rest:
            raise UsageError(
                f"`{said_by[ALL_RANKS]}`: {total} ranks cannot be divided equally over "
                f"{nodes} nodes"
            )
        settings["gpus_per_node"] = ranks
        said_by["gpus_per_node"] = said_by[ALL_RANKS]
    gpus, count = settings.get("gpus"), settings.get("gpus_per_node")
    if gpus is None or count is None:
        return
    if len(str(gpus).split(",")) != count:
        raise UsageError(
            f"`{said_by['gpus']}` conflicts with `{said_by['gpus_per_node']}`",
            "remove one of them",
        )
    del settings["gpus_per_node"]


def _settle_offload(settings: dict[str, object], said_by: dict[str, str]) -> None:
    """Accelerate's devices of the optimizer and the parameters, as one setting."""
    devices = tuple(settings.pop(name, None) for name in (OPTIMIZER_DEVICE, PARAMETER_DEVICE))
    if devices == (None, None):
        return
    words = [said_by[name] for name in (OPTIMIZER_DEVICE, PARAMETER_DEVICE) if name in said_by]
    optimizer, parameters = (device == "cpu" for device in devices)
    if parameters and not optimizer:
        raise UsageError(
            f"`{' '.join(words)}`: zerowiz offloads parameters only together with the optimizer",
            "offload both with `$offload all`",
        )
    settings["offload"] = "all" if parameters else "optimizer" if optimizer else "none"
    said_by["offload"] = " ".join(words)
