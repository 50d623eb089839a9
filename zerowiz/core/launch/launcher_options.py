"""The options of other launchers, and what zerowiz makes of each.

torch 2.13, torch/distributed/run.py, get_args_parser; accelerate 1.15, commands/launch.py,
launch_command_parser; deepspeed 0.19.8, launcher/runner.py, parse_args; CPython's `python --help`.
`tests/core/launch/test_launcher_options.py` holds the tables to these parsers.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from zerowiz.core.launch.plan import Launcher
from zerowiz.words import _

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
            raise ValueError(_("it must be a whole number of at least 1"))
        return {setting: int(word)}

    return read


def _text(setting: str) -> Reader:
    return lambda word: {setting: word}


def _on(setting: str) -> Reader:
    return lambda _word: {setting: True}


def _chosen(setting: str, names: Mapping[str, object]) -> Reader:
    def read(word: str) -> Values:
        if word not in names:
            raise ValueError(_("use one of {names}", names=", ".join(names)))
        value = names[word]
        return {} if value is None else {setting: value}

    return read


def _ranks(word: str) -> Values:
    """Torchrun's ranks of each node: a number, or all GPUs."""
    if word in {"gpu", "auto"}:
        return {}
    if word == "cpu":
        raise ValueError(_("set the number of CPU ranks: `$accelerator cpu $gpus_per_node 2`"))
    return _count("gpus_per_node")(word)


def _torch_nodes(word: str) -> Values:
    """Torchrun's number of nodes, or a range of it."""
    fewest, _colon, most = word.partition(":")
    if most and most != fewest:
        raise ValueError(_("set a fixed number of nodes: `$nodes 2`"))
    return _count("nodes")(fewest)


def _gpu_ids(word: str) -> Values:
    return {} if word == "all" else {"gpus": word}


def _include(word: str) -> Values:
    """DeepSpeed's `localhost:0,1`."""
    host, _colon, slots = word.partition(":")
    if host not in {"localhost", "127.0.0.1"} or "@" in word:
        raise ValueError(
            _("zerowiz uses every slot of `$hostfile`: write one with these slots only")
        )
    return {"gpus": slots} if slots else {}


def _exclude(word: str) -> Values:
    if word:
        raise ValueError(
            _("select the others: `$gpus 0,1`, or a `$hostfile` with those hosts only")
        )
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
    **_values(_gpu_ids, "--gpu_ids"),
    **_switches(lambda _word: {"accelerator": "cpu"}, "--cpu"),
    **_switches(_on(IS_MODULE), "-m", "--module"),
    **_values(
        _chosen("precision", {"no": "fp32", "fp16": "fp16", "bf16": "bf16"}), "--mixed_precision"
    ),
    **_values(_chosen("stage", {each: each for each in "0123"}), "--zero_stage"),
    **_values(_count("accumulation_steps"), "--gradient_accumulation_steps"),
    **_values(_chosen(OPTIMIZER_DEVICE, _DEVICES), "--offload_optimizer_device"),
    **_values(_chosen(PARAMETER_DEVICE, _DEVICES), "--offload_param_device"),
    **_values(_text("hostfile"), "--deepspeed_hostfile"),
    **_values(_include, "--deepspeed_inclusion_filter"),
    **_values(_exclude, "--deepspeed_exclusion_filter"),
    **_values(
        _chosen(LAUNCHER, {"standard": None, **{each.value: each.value for each in Launcher}}),
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
    **_values(_chosen(LAUNCHER, {each.value: each.value for each in Launcher}), "--launcher"),
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
        return tuple(each for each in self.options if each.startswith(name))

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
