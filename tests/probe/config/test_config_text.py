"""A config is found in the file that a person names, and its keys where they stand."""

import json
import re
from pathlib import Path

import pytest
from paths import ROOT

from zerowiz.core.lint.config import ConfigText
from zerowiz.core.workload import Integration
from zerowiz.errors import UsageError
from zerowiz.probe import config_text
from zerowiz.probe.config_text import (
    NamedFile,
    decode_config,
    looks_like_config,
    read_configs,
    read_yaml,
)

KNOWN = frozenset({"train_batch_size", "bf16", "optimizer", "zero_optimization"})


def read(text: str) -> ConfigText:
    found = read_yaml(ConfigText(path="x.yaml", text=text), KNOWN)
    assert isinstance(found, ConfigText)
    return found


def value_of(config: ConfigText) -> object:
    assert config.fault is None, config.fault
    return json.loads(config.text)


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
        ('{"zero_optimization": ', False),
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


def test_each_line_of_the_config_knows_its_place_in_the_yaml_file() -> None:
    config = read("deepspeed:\n  bf16:\n    enabled: true\n  x:\n    - 7\n")
    places = {
        line.strip(", "): (place.line, place.column)
        for line, place in zip(config.text.splitlines(), config.places, strict=True)
    }
    assert (2, 3) == places['"bf16":']
    assert (3, 5) == places['"enabled":']
    assert (3, 14) == places["true"]
    assert (5, 7) == places["7"]
    assert not config.is_fixable
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
    found = read_yaml(ConfigText(path="x.yaml", text=text), KNOWN)
    assert isinstance(found, NamedFile)
    assert ("z.json", integration) == (found.path, found.integration)


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


def test_aliases_of_aliases_end() -> None:
    lines = [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(9)]
    assert "too many levels or aliases" == fault_of("\n".join(["a0: &a0 x", *lines]))[2]


@pytest.mark.parametrize("text", ["", "a: 1", "- bf16", "bf16", "deepspeed: null"])
def test_a_yaml_file_without_a_config_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="there is no DeepSpeed config in"):
        read(text)


def test_the_hook_takes_the_names_that_a_folder_takes(tmp_path: Path) -> None:
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"files: (.*)", hooks)
    names = ["ds_config.json", "my_ds_config_v2.json", "llama_deepspeed.json", "7b-zero3.json"]
    names += ["zero3_offload.json", "stage3_zero.json", "ds_z3_config.json"]
    others = [
        "config.json",
        "nonzero.json",
        "zero.yaml",
        "zero3.json.bak",
        "ds.json",
        "ds_zones.json",
    ]
    for name in (*names, *others):
        (tmp_path / name).write_text("{}")
    read = [each for each in read_configs(str(tmp_path), KNOWN) if isinstance(each, ConfigText)]
    taken = {Path(config.path).name for config in read}
    assert set(names) == taken
    assert taken == {name for name in (*names, *others) if re.search(pattern, f"a/{name}")}


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
    assert "2 JSON files in 3 of its folders were read, and the others were not" in str(left)
    assert ["0 folders", "1 folders", "2 folders"] == counted
