"""A config is found in the file that a person names, and its keys where they stand."""

import contextlib
import copy
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from paths import ROOT

from zerowiz.core.dsconfig.accelerate import FILE_KNOWN, AccelerateFile, fill
from zerowiz.core.dsconfig.hjson import Array, Dialect, Object, plain
from zerowiz.core.lint.config import ConfigText, Context
from zerowiz.core.lint.linter import check_accelerate
from zerowiz.core.workload import Integration, Precision, Workload
from zerowiz.errors import UsageError
from zerowiz.probe import config_text
from zerowiz.probe.config_text import (
    decode_config,
    looks_like_config,
    read_config_file,
    read_config_text,
    read_config_values,
    read_configs,
    read_yaml,
)

KNOWN = frozenset({"train_batch_size", "bf16", "optimizer", "zero_optimization"})


def read(text: str) -> ConfigText:
    return read_yaml(ConfigText(path="x.yaml", text=text), KNOWN)


def value_of(config: ConfigText) -> object:
    assert config.fault is None, config.fault
    return plain(config.parsed(Dialect.JSON))


def fault_of(text: str) -> tuple[int, int, str]:
    fault = read(text).fault
    assert fault is not None
    return fault.line, fault.column, fault.reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"zero_optimization": {}}', True),
        ("zero_optimization: {stage: 3}", True),
        ('{"train_batch_size": 8, "bf16": {}}', True),
        ('{"train_batch_size": 8, "epoch": 1}', False),
        ('{"model_type": "llama"}', False),
        ("[1]", False),
        ('{"zero_optimization": {"stage": 2,}', True),
        ('<<<<<<< mine\n{"train_batch_size": 8, "bf16": {}}', True),
        ('{"zero_optimization": {}}\n{"zero_optimization": {}}\n', False),
        ("", False),
    ],
)
def test_a_config_is_told_by_its_keys(text: str, expected: bool) -> None:
    assert expected == looks_like_config(text, KNOWN)


def test_a_byte_order_mark_stays_for_the_rules_to_judge() -> None:
    assert "\ufeff{}" == decode_config("x.json", b"\xef\xbb\xbf{}").text


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_byte_that_is_no_text_has_a_line_and_a_column(end: bytes) -> None:
    fault = decode_config("x.json", b"{" + end + "ü".encode() + b"\xe4").fault
    assert fault is not None
    assert (2, 2, "the byte 0xe4 is not UTF-8") == (fault.line, fault.column, fault.reason)


def test_a_folder_with_the_name_of_a_config_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").mkdir()
    (found,) = read_configs(str(tmp_path), KNOWN)
    assert isinstance(found, UsageError)
    (tmp_path / "ds_config.json" / "ds_config.json").write_text("{}")
    (found,) = read_configs(str(tmp_path), KNOWN)
    assert isinstance(found, ConfigText)
    assert str(tmp_path / "ds_config.json" / "ds_config.json") == found.path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "bf16: {enabled: true}\nx: [1, 2.5, ~, a]",
            {"bf16": {"enabled": True}, "x": [1, 2.5, None, "a"]},
        ),
        ("train_batch_size: 5e8", {"train_batch_size": "5e8"}),
        ("train_batch_size: 1\ntrain_batch_size: 2", {"train_batch_size": 2}),
        (
            "bf16: &on {enabled: on}\nfp16: *on",
            {"bf16": {"enabled": True}, "fp16": {"enabled": True}},
        ),
        (
            "a: &a {stage: 1}\nbf16: {<<: *a, x: 2}",
            {"a": {"stage": 1}, "bf16": {"stage": 1, "x": 2}},
        ),
        ("bf16: 2024-01-01", {"bf16": "2024-01-01"}),
        ("deepspeed: {stage: []}", {"stage": []}),
        ("\ufeffbf16: {}", {"bf16": {}}),
    ],
)
def test_yaml_is_read_as_pyyaml_does(text: str, expected: object) -> None:
    assert expected == value_of(read(text))


def test_each_key_and_value_knows_its_place_in_the_yaml_file() -> None:
    config = read("deepspeed:\n  bf16:\n    enabled: true\n  x:\n    - 7\n")
    assert config.root is not None
    section, other = config.root.members
    assert isinstance(section.value, Object)
    assert isinstance(other.value, Array)
    (enabled,) = section.value.members
    places = [section.key.place, enabled.key.place, enabled.value.place, other.value.items[0].place]
    assert [(2, 3), (3, 5), (3, 14), (5, 7)] == [(place.line, place.column) for place in places]
    assert Integration.HF is config.integration


def test_accelerates_own_keys_are_the_config_that_it_builds() -> None:
    config = read(
        "deepspeed_config:\n  zero_stage: 3\n  offload_param_device: cpu\n  zero3_init_flag: true\n"
        "  gradient_clipping: 1.0\nmixed_precision: fp16\n"
    )
    assert {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
        "gradient_clipping": 1.0,
        "gradient_accumulation_steps": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "fp16": {"enabled": True, "auto_cast": True},
    } == value_of(config)
    assert Integration.ACCELERATE is config.integration


def test_accelerate_takes_stage_2_where_none_is_said() -> None:
    config = value_of(read("deepspeed_config: {}\nmixed_precision: 'no'\n"))
    assert isinstance(config, dict)
    assert {"stage": 2} == config["zero_optimization"]
    assert not {"fp16", "bf16"} & config.keys()


@pytest.mark.parametrize(
    ("text", "integration"),
    [
        ("deepspeed: z.json", Integration.HF),
        ("deepspeed_config:\n  deepspeed_config_file: z.json", Integration.ACCELERATE),
    ],
)
def test_a_named_file_is_read_by_whom_names_it(text: str, integration: Integration) -> None:
    found = read(text)
    assert ("z.json", integration) == (found.named, found.integration)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("bf16: {", 1),
        ("a: 1\n b: 2", 2),
        ("bf16: !!python/object:os.system x", 1),
        ("bf16: 2024-99-99", 1),
        ("bf16: &a [*a]", 1),
        ("bf16: " + "[" * 500, 1),
        ("bf16: \x00", 1),
        ("--- 1\n--- 2", 2),
    ],
)
def test_what_is_no_tree_of_values_is_a_fault(text: str, line: int) -> None:
    assert line == fault_of(text)[0]


@pytest.mark.parametrize("number", ["9" * 5000, f"0x{'f' * 5000}"])
def test_a_number_of_too_many_digits_is_a_fault(number: str) -> None:
    assert (1, 7, "a number has too many digits") == fault_of(f"bf16: {number}")


def test_aliases_of_aliases_end() -> None:
    lines = [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(9)]
    assert "too many levels or aliases" == fault_of("\n".join(["a0: &a0 x", *lines]))[2]


@pytest.mark.parametrize("text", ["", "a: 1", "- bf16", "bf16", "deepspeed: null"])
def test_a_yaml_file_without_a_config_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="there is no DeepSpeed config in"):
        read(text)


HOOK_ALONE = ["ds.json", "ds_stage2_fp16.json", "ds_2_config_bf16.json", "stage3.json"]
HOOK_ALONE += ["deepspeed_zero2.yaml", "zero3-bf16.yml", "sp-alst.ds-config.json"]


def test_the_hook_takes_more_names_than_a_folder_where_what_is_in_it_counts(
    tmp_path: Path,
) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    names = ["ds_config.json", "my_ds_config_v2.json", "llama_deepspeed.json", "7b-zero3.json"]
    names += ["zero3_offload.json", "stage3_zero.json", "ds_z3_config.json"]
    others = ["config.json", "nonzero.json", "zero.yaml", "zero3.json.bak", "ads.json"]
    others += ["ds_train.json", "zero3.plan.json"]
    for name in (*names, *HOOK_ALONE, *others):
        (tmp_path / name).write_text("{}")
    read = [each for each in read_configs(str(tmp_path), KNOWN) if isinstance(each, ConfigText)]
    assert set(names) == {Path(config.path).name for config in read}
    by_hook = {
        name
        for name in (*names, *HOOK_ALONE, *others)
        if re.search(hook["files"], f"a/{name}") and not re.search(hook["exclude"], f"a/{name}")
    }
    assert {*names, *HOOK_ALONE} == by_hook


def test_a_folder_that_is_too_large_is_walked_as_far_as_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / "ds_config.json").write_text("{}")
    monkeypatch.setattr(config_text, "MOST_FOLDERS", 3)
    counted: list[str] = []
    *read, left = read_configs(str(tmp_path), KNOWN, counted.append)
    paths = [Path(each.path) for each in read if isinstance(each, ConfigText)]
    assert ["a", "b"] == [path.parent.name for path in paths]
    assert "2 JSON and YAML files in 3 of its folders were read, and the others were not" in str(
        left
    )
    assert ["0 folders", "1 folders", "2 folders"] == counted


# What is made of a file of `accelerate config` is what Accelerate itself makes of it.

HEAD = "distributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 2\n"
# As `accelerate config` writes it, and as recipes of TRL and people write it by hand.
FILES = {
    "asked": "deepspeed_config:\n  gradient_accumulation_steps: 4\n  gradient_clipping: 0.5\n"
    "  offload_optimizer_device: none\n  offload_param_device: none\n  zero3_init_flag: false\n"
    "  zero_stage: 2\nmixed_precision: bf16\n",
    "trl": "deepspeed_config:\n  deepspeed_multinode_launcher: standard\n"
    "  offload_optimizer_device: none\n  offload_param_device: none\n  zero3_init_flag: true\n"
    "  zero3_save_16bit_model: true\n  zero_stage: 3\nmixed_precision: bf16\n",
    "empty": "mixed_precision: 'no'\n",
    "bare": "deepspeed_config: {}\n",
    "fp16": "deepspeed_config:\n  zero_stage: 1\n  gradient_accumulation_steps: 2\n"
    "mixed_precision: fp16\n",
    "old": "deepspeed_config:\n  zero_stage: 1\nfp16: true\n",
    "old in quotes": "deepspeed_config:\n  zero_stage: 1\nfp16: 'true'\n",
    "old and new": "deepspeed_config:\n  zero_stage: 1\nfp16: true\nmixed_precision: null\n",
    "offload": "deepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: CPU\n"
    "  offload_param_device: cpu\n  gradient_accumulation_steps: '8'\nmixed_precision: bf16\n",
    "stage 0": "deepspeed_config:\n  zero_stage: 0\n  gradient_clipping: 1\nmixed_precision: 'no'\n",
    "no clipping": "deepspeed_config:\n  zero_stage: 2\n  gradient_clipping: 0.0\n",
    "nothing said": "deepspeed_config:\n  zero_stage: 2\n  deepspeed_config_file: none\n"
    "  gradient_clipping: null\nmixed_precision: 'no'\n",
    "auto": "deepspeed_config:\n  zero_stage: 2\n  gradient_accumulation_steps: auto\n"
    "  gradient_clipping: auto\nmixed_precision: bf16\n",
}


def write(folder: Path, text: str) -> Path:
    path = folder / "acc.yaml"
    path.write_text(text)
    return path


def built(path: Path) -> dict[str, Any]:
    """The config that a file is read as."""
    return read_config_values(path)


def own_of(path: Path) -> AccelerateFile:
    """What a file of `accelerate config` says besides."""
    own = read_config_text(path).accelerate
    assert own is not None
    return own


@pytest.fixture(scope="module")
def third() -> Iterator[SimpleNamespace]:
    with pytest.MonkeyPatch.context() as patch:
        # DeepSpeed looks for an accelerator when it is imported.
        patch.setenv("DS_ACCELERATOR", "cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from accelerate import DeepSpeedPlugin, ParallelismConfig
            from accelerate.commands import launch
            from accelerate.commands.config.config_args import ClusterConfig
            from deepspeed.runtime.config import DeepSpeedConfig
            from transformers import TrainingArguments
            from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
        yield SimpleNamespace(
            launch=launch,
            ClusterConfig=ClusterConfig,
            DeepSpeedPlugin=DeepSpeedPlugin,
            ParallelismConfig=ParallelismConfig,
            DeepSpeedConfig=DeepSpeedConfig,
            TrainingArguments=TrainingArguments,
            HfTrainerDeepSpeedConfig=HfTrainerDeepSpeedConfig,
        )


PREFIXES = ("ACCELERATE_", "PARALLELISM_CONFIG_")


def environ_of_accelerate(path: Path, third: SimpleNamespace) -> dict[str, str]:
    """The variables that `accelerate launch --config_file` gives its ranks."""
    launch = third.launch
    words = ["--config_file", str(path), "--main_process_port", "0", "train.py"]
    args, defaults, _ = launch._validate_launch_command(
        launch.launch_command_parser().parse_args(words)
    )
    assert args.use_deepspeed
    args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    _, env = launch.prepare_deepspeed_cmd_env(args)
    return {name: value for name, value in env.items() if name.startswith(PREFIXES)}


def config_in_a_rank(
    env: dict[str, str], third: SimpleNamespace, said: str | None = None
) -> dict[str, Any]:
    """The config that Accelerate has once `prepare` has filled it (accelerator.py).

    Args:
        env: Of the rank.
        third: The libraries.
        said: The Accelerator's own `mixed_precision`.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        plugin = third.DeepSpeedPlugin()
        plugin.set_mixed_precision(said or env.get("ACCELERATE_MIXED_PRECISION", "no"))
        steps = int(env.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1").replace("auto", "1"))
        plugin.fill_match(
            "gradient_accumulation_steps", must_match=False, gradient_accumulation_steps=steps
        )
        plugin.deepspeed_config_process(
            must_match=False,
            **{
                "gradient_clipping": 1.0,
                "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
                "train_micro_batch_size_per_gpu": 3,
                "train_batch_size": 3 * plugin.get_value("gradient_accumulation_steps"),
            },
        )
        return copy.deepcopy(plugin.deepspeed_config)


def as_deepspeed_reads_it(config: dict[str, Any], third: SimpleNamespace) -> dict[str, Any]:
    """What a config means, DeepSpeed's defaults included."""
    read = third.DeepSpeedConfig(copy.deepcopy(config))
    zero = read.zero_config.model_dump()
    for part in ("offload_optimizer", "offload_param"):
        # A section whose device is none is as good as no section (zero/config.py).
        if zero[part] is not None and str(zero[part]["device"]).endswith("none"):
            zero[part] = None
    return {
        "zero": zero,
        "batch": (
            read.train_batch_size,
            read.train_micro_batch_size_per_gpu,
            read.gradient_accumulation_steps,
        ),
        "clipping": read.gradient_clipping,
        "fp16": read.float16_config.model_dump(),
        "bf16": read.bfloat16_config.model_dump(),
        "prints": read.steps_per_print,
    }


# Where the file says a precision, the Accelerator has none of its own.
SILENT = [name for name, text in FILES.items() if not re.search("(bf16|fp16)$|fp16: '?true", text)]


@pytest.mark.parametrize(
    ("name", "said"),
    [*((name, None) for name in FILES), *product(SILENT, ("bf16", "fp16"))],
)
def test_the_config_of_a_file_is_the_one_that_accelerate_builds(
    tmp_path: Path, third: SimpleNamespace, name: str, said: str | None
) -> None:
    path = write(tmp_path, HEAD + FILES[name])
    environ = environ_of_accelerate(path, third)
    theirs = config_in_a_rank(environ, third, said)
    json_path = tmp_path / "acc.ds_config.json"
    json_path.write_text(json.dumps(built(path)))
    own = own_of(path)
    ours = config_in_a_rank(
        {
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(json_path),
            **own.env,
        },
        third,
        said,
    )
    assert as_deepspeed_reads_it(theirs, third) == as_deepspeed_reads_it(ours, third)
    assert {n: v for n, v in environ.items() if n in own.env} == own.env


def config_of_a_trainer(
    environ: Mapping[str, str], given: dict[str, Any] | None, third: SimpleNamespace, said: Any
) -> dict[str, Any]:
    """The config that a Trainer has when it trains (transformers 5, training_args.py, trainer.py).

    Args:
        environ: Of the rank.
        given: By `--deepspeed`.
        third: The libraries.
        said: Arguments of the Trainer.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
            patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        arguments = third.TrainingArguments(
            output_dir="never-written", use_cpu=True, report_to="none", deepspeed=given, **said
        )
        plugin = arguments.deepspeed_plugin
        if given is None:
            config = third.HfTrainerDeepSpeedConfig(plugin.hf_ds_config.config)
            config.trainer_config_process(arguments)
        else:
            config = arguments.hf_deepspeed_config
            plugin.set_mixed_precision(arguments.mixed_precision)
        config.trainer_config_finalize(arguments, None, num_training_steps=10)
        return {**config.config, "dtype": str(config.dtype())}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("precision", [None, "bf16", "fp16"])
def test_a_trainer_gets_what_accelerate_would_give_it(
    tmp_path: Path, third: SimpleNamespace, name: str, precision: str | None
) -> None:
    path = write(tmp_path, HEAD + FILES[name])
    own, config = own_of(path), built(path)
    steps = config["gradient_accumulation_steps"]
    clipping = config.get("gradient_clipping", "auto")
    said = {
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 2 if steps == "auto" else steps,
        "max_grad_norm": 0.7 if clipping == "auto" else clipping,
        **({} if precision is None else {precision: True}),
    }
    environ = environ_of_accelerate(path, third)
    filled = fill(config, Workload(), Integration.HF, ())
    if own.mixed_precision not in {"no", precision}:
        with pytest.raises(ValueError, match=r"mismatch TrainingArguments|cannot be set to"):
            config_of_a_trainer(own.env, filled, third, said)
        return
    theirs = config_of_a_trainer(environ, None, third, said)
    ours = config_of_a_trainer(own.env, filled, third, said)
    assert theirs.pop("dtype") == ours.pop("dtype")
    theirs, ours = (as_deepspeed_reads_it(config, third) for config in (theirs, ours))
    # Where the file is silent Accelerate adds this; a Trainer casts its inputs itself.
    if own.mixed_precision == "no":
        theirs["fp16"]["auto_cast"] = False
    assert theirs == ours


def test_a_path_on_nvme_is_followed_which_accelerate_loses(
    tmp_path: Path, third: SimpleNamespace
) -> None:
    text = (
        "deepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: nvme\n"
        "  offload_optimizer_nvme_path: /scratch\n  offload_param_device: cpu\n"
        "  offload_param_nvme_path: /elsewhere\nmixed_precision: bf16\n"
    )
    path = write(tmp_path, HEAD + text)
    zero = built(path)["zero_optimization"]
    assert {"device": "nvme", "nvme_path": "/scratch"} == zero["offload_optimizer"]
    assert {"device": "cpu"} == zero["offload_param"]
    theirs = config_in_a_rank(environ_of_accelerate(path, third), third)
    assert "none" == theirs["zero_optimization"]["offload_optimizer"]["nvme_path"]
    own = own_of(path)
    assert ["offload_optimizer_nvme_path"] == [key.name for key in own.dropped]


def test_what_reaches_the_ranks_beside_the_config(tmp_path: Path, third: SimpleNamespace) -> None:
    text = (
        "deepspeed_config:\n  zero_stage: 3\n  zero3_init_flag: false\n"
        "  gradient_accumulation_steps: 2\n"
        "  deepspeed_moe_layer_cls_names: MixtralSparseMoeBlock\n"
    )
    path = write(tmp_path, HEAD + text)
    own = own_of(path)
    assert {
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
        "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": "MixtralSparseMoeBlock",
    } == own.env
    assert own.env.items() <= environ_of_accelerate(path, third).items()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("num_machines: 2\nnum_processes: 16\ngpu_ids: 0,1\n", (16, 2, "0,1")),
        ("num_processes: -1\ngpu_ids: all\n", (None, 1, None)),
        ("deepspeed_config: {}\ngpu_ids: 1\nnum_processes: '1'\n", (1, 1, "1")),
    ],
)
def test_ranks_of_a_file(tmp_path: Path, text: str, expected: tuple[object, ...]) -> None:
    own = own_of(write(tmp_path, "distributed_type: DEEPSPEED\n" + text))
    assert expected == (own.ranks, own.nodes, own.gpu_ids)


def test_facts_of_a_file(tmp_path: Path) -> None:
    own = read_config_file(write(tmp_path, HEAD + FILES["asked"]))
    assert (2, 4, Precision.BF16) == (own.stage, own.accumulation_steps, own.precision)
    assert own.fallback_precision is None
    silent = read_config_file(write(tmp_path, HEAD + FILES["nothing said"]), Integration.HF)
    assert (None, None, None) == (silent.accumulation_steps, silent.micro_batch, silent.precision)
    assert silent.fallback_precision is Precision.FP32
    unquoted = read_config_file(write(tmp_path, HEAD + "mixed_precision: no\n"))
    assert unquoted.precision is None


PARALLEL = "parallelism_config:\n  parallelism_config_dp_shard_size: 2\n"
# A file, what the error says of it, and a hint.
REFUSED = {
    **{
        kind: (
            f"distributed_type: {kind}\nfsdp_config: {{fsdp_version: 2}}\n",
            f"is an Accelerate config for {kind.strip(chr(39))}, not for DeepSpeed",
            "writes a DeepSpeed config",
        )
        for kind in ("FSDP", "MULTI_GPU", "NO", "'NO'", "MEGATRON_LM")
    },
    **{
        f"shares more than data: {name}": (
            f"{HEAD}{PARALLEL}  parallelism_config_{name}_size: 2\n",
            f"has `parallelism_config_{name}_size: 2`",
            "",
        )
        for name in ("cp", "tp")
    },
    "a precision that is not planned": (
        f"{HEAD}mixed_precision: fp8\n",
        "has `mixed_precision: fp8`, which zerowiz does not",
        "",
    ),
}


@pytest.mark.parametrize(("text", "what", "hint"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_not_planned_with_is_refused(
    tmp_path: Path, text: str, what: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(what)) as caught:
        read_config_file(write(tmp_path, text))
    assert hint in "\n".join(caught.value.hints)


def test_a_file_that_names_a_config_is_that_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("z.json").write_text('{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}')
    path = write(tmp_path, HEAD + "deepspeed_config:\n  deepspeed_config_file: z.json\n")
    own = read_config_file(path, Integration.ACCELERATE)
    assert (1, Precision.BF16, None) == (own.stage, own.precision, own.fallback_precision)


@pytest.mark.parametrize(
    "key", ["zero_stage: 2", "gradient_accumulation_steps: 1", "offload_param_device: null"]
)
def test_what_accelerate_refuses_beside_a_named_config_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, third: SimpleNamespace, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("z.json").write_text('{"zero_optimization": {"stage": 1}}')
    text = f"deepspeed_config:\n  deepspeed_config_file: z.json\n  {key}\n"
    path = write(tmp_path, HEAD + text)
    assert [(key.partition(":")[0], 6)] == found_in(path)
    with pytest.raises(ValueError, match="will be ignored"):
        config_in_a_rank(environ_of_accelerate(path, third), third)


# What Accelerate reads as it was meant, and what it does not.
READ = (
    "zero_stage: '3'",
    "gradient_accumulation_steps: auto",
    "gradient_accumulation_steps: '4'",
    "gradient_clipping: Auto",
    "gradient_clipping: '1.0'",
    "gradient_clipping: 1e-1",
    "zero3_init_flag: yes",
    "zero3_init_flag: 'T'",
    "zero3_init_flag: 0",
    "zero3_init_flag: null",
    "zero3_save_16bit_model: 'TRUE'",
    "zero3_save_16bit_model: 'off'",
    "deepspeed_moe_layer_cls_names: A,B",
    "mixed_precision: BF16",
    "mixed_precision: 'no'",
    "mixed_precision: null",
)
MISREAD = (
    f"zero_stage: '{'9' * 5000}'",
    "zero_stage: two",
    "zero_stage: 2.0",
    "zero_stage: true",
    "zero_stage: auto",
    "zero_stage: [2]",
    "gradient_accumulation_steps: Auto",
    "gradient_accumulation_steps: 2.5",
    "gradient_accumulation_steps: true",
    "gradient_clipping: one",
    "gradient_clipping: none",
    "gradient_clipping: true",
    "zero3_init_flag: tru",
    "zero3_init_flag: auto",
    "zero3_init_flag: none",
    "mixed_precision: no",
    "mixed_precision: fp32",
    "mixed_precision: 16",
)
# It takes these words for false, and splits a list as a text.
FALSE = ("zero3_save_16bit_model: tru", "zero3_save_16bit_model: 1")
LIST = "deepspeed_moe_layer_cls_names: [A, B]"


def found_in(path: Path) -> list[tuple[str, int]]:
    """What is found in the file itself."""
    return [
        (each.key.rpartition(".")[2], each.line)
        for each in check_accelerate(own_of(path), Context())
    ]


def with_value(folder: Path, line: str) -> Path:
    """A file that has this line, as its fifth."""
    stage = "" if line.startswith("zero_stage") else "  zero_stage: 3\n"
    text = f"  {line}\n{stage}"
    if line.startswith("mixed_precision"):
        text = f"{line}\n"
    return write(folder, f"{HEAD}deepspeed_config:\n{text}")


@pytest.mark.parametrize("line", READ)
def test_nothing_is_found_of_a_value_that_accelerate_reads(
    tmp_path: Path, third: SimpleNamespace, line: str
) -> None:
    path = with_value(tmp_path, line)
    config_in_a_rank(environ_of_accelerate(path, third), third)
    assert [] == found_in(path)


@pytest.mark.parametrize("line", [*MISREAD, *FALSE, LIST], ids=lambda line: line[:50])
def test_a_value_that_accelerate_does_not_read_as_it_was_meant_is_found(
    tmp_path: Path, third: SimpleNamespace, line: str
) -> None:
    path = with_value(tmp_path, line)
    assert [(line.partition(":")[0], 5)] == found_in(path)
    if line == LIST:
        environ = environ_of_accelerate(path, third)
        assert "['A', 'B']" == environ["ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"]
    elif line in FALSE:
        zero = config_in_a_rank(environ_of_accelerate(path, third), third)["zero_optimization"]
        assert zero["stage3_gather_16bit_weights_on_model_save"] is False
    else:
        with pytest.raises((ValueError, AttributeError)):
            config_in_a_rank(environ_of_accelerate(path, third), third)


# Sizes of 8 processes, and whether they train.
SIZES = {
    "sp_size: 4, dp_shard_size: 2": True,
    "sp_size: 4, dp_shard_size: '2'": True,
    "sp_size: 2, dp_shard_size: 2, dp_replicate_size: 2": True,
    "sp_size: 8, sp_backend: deepspeed, cp_backend: torch": True,
    "sp_size: 1, sp_seq_length: 4096": True,
    "sp_size: 3": False,
    "sp_size: 16": False,
    "sp_size: 4": False,
    "sp_size: 4, dp_shard_size: 4": False,
    "sp_size: many": False,
    "sp_size: -2": False,
    "sp_size: 0": False,
    "sp_size: '4'": False,
    "sp_size: true": False,
    "sp_size: null": False,
    "dp_shard_size: 0": False,
    "sp_size: 8, sp_backend: torch": False,
    "cp_backend: deepspeed": False,
    "dp_shard_size: 4": False,
    f"dp_shard_size: '{'9' * 5000}'": False,
    f"dp_shard_size: {'9' * 3000}, dp_replicate_size: {'9' * 3000}": False,
}


@pytest.mark.parametrize("sizes", SIZES, ids=[sizes[:50] for sizes in SIZES])
def test_sizes_that_are_not_of_all_ranks_are_found(
    tmp_path: Path, third: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, sizes: str
) -> None:
    lines = "".join(f"  parallelism_config_{size}\n" for size in sizes.split(", "))
    text = f"{HEAD}num_processes: 8\nparallelism_config:\n{lines}"
    path = write(tmp_path, text)
    ranks = SimpleNamespace(multi_device=True, num_processes=8, is_fsdp2=False)
    with contextlib.suppress(ValueError, TypeError):
        for name, value in environ_of_accelerate(path, third).items():
            monkeypatch.setenv(name, value)
        shared = third.ParallelismConfig()
        shared._validate_accelerator(ranks)
        # What accelerator.py, _prepare_deepspeed makes, and what DeepSpeed compares it with.
        groups = 8 // shared.sp_size
        trains = shared.data_parallel_size == groups or shared.sp_size == 1
        assert SIZES[sizes] is trains
        assert trains is (found_in(path) == [])
        return
    assert not SIZES[sizes]
    assert found_in(path)


@pytest.mark.parametrize("name", ["sp", "cp", "tp"])
def test_ranks_that_each_have_whole_sequences_are_planned(tmp_path: Path, name: str) -> None:
    text = f"{HEAD}{PARALLEL}  parallelism_config_{name}_size: 1\n"
    assert read_config_file(write(tmp_path, text)).stage == 2


def test_ranks_that_share_sequences_are_planned(tmp_path: Path) -> None:
    text = f"{HEAD}{PARALLEL}  parallelism_config_sp_size: 4\n"
    assert 4 == read_config_file(write(tmp_path, text)).sequence_parallel


def test_keys_that_accelerate_does_not_have_are_known(
    tmp_path: Path, third: SimpleNamespace
) -> None:
    known = (
        "  deepspeed_hostfile: h\n  deepspeed_exclusion_filter: e\n"
        "  deepspeed_inclusion_filter: i\n  deepspeed_multinode_launcher: standard\n"
    )
    text = f"{HEAD}deepspeed_config:\n{known}  zero_stage: 1\n  bf16: {{enabled: true}}\n"
    own = own_of(write(tmp_path, text))
    assert ["bf16"] == [key.name for key in own.ignored]
    words = third.launch.launch_command_parser().parse_args(["train.py"])
    assert not hasattr(words, "bf16")
    assert hasattr(words, "deepspeed_hostfile")


def test_a_file_in_json_is_read_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "acc.json"
    path.write_text('{"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}}')
    with pytest.raises(UsageError, match="is a config of Accelerate in JSON"):
        read_config_file(path)
    assert 3 == read_config_file(path.rename(tmp_path / "acc.yaml")).stage


@pytest.mark.parametrize(
    ("reader", "said", "expected"),
    [
        (Integration.HF, (), ("auto", "auto", "auto", "auto", "auto")),
        (Integration.ACCELERATE, (), ("auto", "auto", "auto", None, None)),
        (Integration.ACCELERATE, ("accumulation_steps",), ("auto", 4, "auto", None, None)),
        (Integration.HF, ("precision",), ("auto", "auto", "auto", True, False)),
        (Integration.DEEPSPEED, (), (2, 4, 1.0, True, False)),
    ],
)
def test_numbers_stand_where_the_reader_would_not_fill_in_what_was_planned(
    tmp_path: Path, reader: Integration, said: tuple[str, ...], expected: tuple[object, ...]
) -> None:
    config = built(write(tmp_path, HEAD + "mixed_precision: 'no'\n"))
    step = Workload(micro_batch=2, accumulation_steps=4, precision=Precision.BF16)
    filled: Any = fill(config, step, reader, said)
    assert expected == (
        filled["train_micro_batch_size_per_gpu"],
        filled["gradient_accumulation_steps"],
        filled["gradient_clipping"],
        filled.get("bf16", {}).get("enabled"),
        filled.get("fp16", {}).get("enabled"),
    )


def test_a_precision_that_the_file_says_is_left_as_it_is(tmp_path: Path) -> None:
    config = built(write(tmp_path, HEAD + "mixed_precision: fp16\n"))
    step = Workload(precision=Precision.FP16)
    for reader in Integration:
        filled: Any = fill(config, step, reader, ("precision",))
        assert {"enabled": True, "auto_cast": True} == filled["fp16"]
        assert "bf16" not in filled


def test_the_keys_of_a_file_are_those_that_accelerate_takes(
    tmp_path: Path, third: SimpleNamespace
) -> None:
    fields = {*third.ClusterConfig.__dataclass_fields__}
    assert fields | {"fp16", "dynamo_backend"} == FILE_KNOWN
    text = f"{HEAD}compute_environment: LOCAL_MACHINE\n"
    extra = "dynamo_backend: 'NO'\nfp16: true\n"
    third.ClusterConfig.from_yaml_file(write(tmp_path, text + extra))
    with pytest.raises(ValueError, match=r"unknown keys \(\['num_machine'\]\)"):
        third.ClusterConfig.from_yaml_file(write(tmp_path, text + "num_machine: 1\n"))
