"""A plan file is the contract's object, what it belongs to, and nobody's secrets."""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping

import pytest

from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.launch.provenance import (
    Provenance,
    hide_secrets,
    is_config_of_plan,
    is_plan_path,
    is_unchanged_plan,
    plan_path,
    render_plan,
    without_identities,
    without_secrets,
)
from zerowiz.core.machine.types import Gpu, GpuProcess, Machine, MachineSource

PLAN: Mapping[str, object] = {
    "schema_version": 1,
    "zerowiz_version": "9",
    "machine": {"nodes": 1},
    "chosen": "zero2",
    "reasons": ["because"],
    "command": None,
}
PROVENANCE = Provenance(
    config=PlannedFile(path="runs/a b/ds_config_zero2.json", text='{"é": 1}\n'),
    argv=("zerowiz", "launch", "--yes", "a b.py", "$x", "\udcff"),
    versions={"zerowiz": "9", "torch": None},
)


def test_the_plan_lies_beside_its_config() -> None:
    assert "runs/a.b/ds_config_zero2.plan.json" == plan_path("runs/a.b/ds_config_zero2.json")
    assert is_plan_path(plan_path("ds_config_zero2.json"))
    assert not is_plan_path("ds_config_zero2.json")


def test_the_text_is_the_plan_and_where_it_belongs() -> None:
    text = render_plan(PLAN, PROVENANCE)
    content = json.loads(text)
    assert PLAN == {key: content[key] for key in PLAN}
    assert {"config", "plan_sha256", "reproduce", "versions"} == set(content) - set(PLAN)
    assert {
        "name": "ds_config_zero2.json",
        "sha256": hashlib.sha256(PROVENANCE.config.text.encode()).hexdigest(),
    } == content["config"]
    assert {"zerowiz": "9", "torch": None} == content["versions"]
    assert text.endswith("}\n")


def test_a_plan_knows_itself_and_its_config_until_one_byte_changes() -> None:
    plan, config = render_plan(PLAN, PROVENANCE).encode(), PROVENANCE.config.text.encode()
    name = "ds_config_zero2.json"
    assert is_unchanged_plan(plan)
    assert is_config_of_plan(name, config, plan)
    assert not is_config_of_plan("ds_config_zero3.json", config, plan)
    assert not is_config_of_plan(name, config + b" ", plan)
    for edited in (plan + b" ", plan.replace(b"because", b"Ann asked"), plan.replace(b"9", b"8")):
        assert not is_unchanged_plan(edited)
    for other in (b"", b"[]", b"{}", b"\xff", b'{"config": 1}', b'{"plan_sha256": "x"}'):
        assert not is_unchanged_plan(other)
        assert not is_config_of_plan(name, config, other)


def test_the_shells_line_is_the_command_whatever_its_words_hold() -> None:
    content = json.loads(render_plan(PLAN, PROVENANCE))
    assert list(PROVENANCE.argv) == content["reproduce"]["argv"]
    line = content["reproduce"]["shell"]
    read = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    assert list(PROVENANCE.argv) == [os.fsdecode(word) for word in read.stdout.split(b"\0")[:-1]]
    # A name that is no text can still be written as UTF-8.
    assert render_plan(PLAN, PROVENANCE).encode().isascii()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--hub_token", "abc", "--lr", "1"), ("--hub_token", "***", "--lr", "1")),
        (("--hub-token=abc",), ("--hub-token=***",)),
        (("--token", "abc"), ("--token", "***")),
        (("--wandb_api_key", "abc"), ("--wandb_api_key", "***")),
        (("--run.password", "abc"), ("--run.password", "***")),
        (("--hub_token", "--lr", "1"), ("--hub_token", "--lr", "1")),
        (("positional", "hf_" + "a" * 34), ("positional", "***")),
        (("--eos_token", "</s>"), ("--eos_token", "</s>")),
        (("--max_tokens", "5"), ("--max_tokens", "5")),
        (("--tokenizer_name", "x"), ("--tokenizer_name", "x")),
        (("--wandb_key", "w"), ("--wandb_key", "***")),
        (("--text_key", "x"), ("--text_key", "x")),
        (("https://me:pass@host/x",), ("https://***@host/x",)),
        (("https://ghp_1@host/x", "ssh://git@host/x"), ("https://***@host/x", "ssh://git@host/x")),
        (("--url=ftp://me:pass@host:21",), ("--url=ftp://***@host:21",)),
        (("https://host:80/a@b", "s3://b/c"), ("https://host:80/a@b", "s3://b/c")),
        (("api_key=abc", "lr=1"), ("api_key=***", "lr=1")),
        (("+hub.token=abc", "++wandb.api_key=abc"), ("+hub.token=***", "++wandb.api_key=***")),
        (("model.tokenizer=x", "max_tokens=5"), ("model.tokenizer=x", "max_tokens=5")),
        (("data.eos_token=</s>", "text_key=x"), ("data.eos_token=</s>", "text_key=x")),
        (("token", "abc"), ("token", "abc")),
        (("--key", "x", "--monkey", "y"), ("--key", "x", "--monkey", "y")),
    ],
)
def test_passwords_are_blotted_out_and_nothing_else(
    words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert expected == hide_secrets(words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--hub_token", "abc", "--lr", "1"), ("--lr", "1")),
        (("--bf16", "--url=https://me:pass@host"), ("--bf16",)),
        (("-m", "api_key=abc", "lr=1"), ("-m", "lr=1")),
    ],
)
def test_an_option_goes_with_the_secret_that_is_its_value(
    words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert expected == without_secrets(words)


def test_a_machine_is_told_without_people() -> None:
    gpu = Gpu(
        index=0,
        name="NVIDIA H200",
        uuid="GPU-1",
        free_bytes=7,
        clique="c1",
        processes=(GpuProcess(pid=4, used_bytes=3, name="alice's job"),),
    )
    other = Gpu(index=1, name="NVIDIA H200", uuid="GPU-2", free_bytes=8, clique="c1")
    machine = Machine(
        source=MachineSource.NVML, gpus=(gpu, other), notes=("GPU-1 is odd",), nodes=2
    )
    told = without_identities(machine, lambda text: text.replace("GPU-", "hash-"))
    assert ["hash-1", "hash-2"] == [gpu.uuid for gpu in told.gpus]
    assert ("hash-1 is odd",) == told.notes
    assert [(), ()] == [gpu.processes for gpu in told.gpus]
    assert [7, 8] == [gpu.free_bytes for gpu in told.gpus]
    # Which GPUs share a domain is still told, but not which domain it is.
    assert told.clique not in {None, "c1"}
    assert () == without_identities(machine, str, names_hosts=True).notes
