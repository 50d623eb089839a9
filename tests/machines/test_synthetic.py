"""What holds for the synthetic recordings: their files, their sources, and their links."""

import json
import re
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from machines.make_synthetic import FOLDER, VARIANTS, render_all

RENDERED = render_all()
each_file = pytest.mark.parametrize("name", sorted(RENDERED))

# P2P reads, writes and NVLink (nvml.h, nvmlGpuP2PCapsIndex_t).
P2P_KINDS = (0, 1, 2)


def read(name: str) -> dict[str, Any]:
    recording: dict[str, Any] = json.loads(RENDERED[name])
    return recording


def value(calls: dict[str, Any], call: str) -> Any:
    """The answer of a call, or `None` where it is refused."""
    return calls[call].get("ok")


def handles(calls: dict[str, Any]) -> list[str]:
    """The GPUs that can be opened."""
    count = value(calls, "nvmlDeviceGetCount_v2()")
    found = [value(calls, f"nvmlDeviceGetHandleByIndex_v2({index})") for index in range(count)]
    return [handle for handle in found if handle is not None]


def active_links(calls: dict[str, Any], gpu: str) -> list[int]:
    links = range(value(calls, f"nvmlDeviceGetFieldValues({gpu}, 91, 0)") or 0)
    return [link for link in links if value(calls, f"nvmlDeviceGetNvLinkState({gpu}, {link})")]


def bus_id(calls: dict[str, Any], gpu: str) -> str:
    return str(value(calls, f"nvmlDeviceGetPciInfo_v3({gpu})")["busId"])


def test_the_committed_files_are_what_the_builder_writes() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert RENDERED == committed, "run `python tests/machines/make_synthetic.py`"


def test_no_two_machines_share_a_name() -> None:
    assert len(VARIANTS) == len(RENDERED)


@each_file
def test_a_file_says_that_it_is_synthetic_and_what_it_was_made_from(name: str) -> None:
    recording = read(name)
    assert (2, "synthetic") == (recording["schema_version"], recording["kind"])
    assert any(re.match(r"https://\S+: ", source) for source in recording["sources"])
    assert recording["sources"][-1].startswith("Filled in: ")


@each_file
def test_an_answer_is_a_value_or_a_code(name: str) -> None:
    answers = read(name)["nvml"].values()
    assert [] == [answer for answer in answers if list(answer) not in (["ok"], ["err"])]


@each_file
def test_a_call_to_a_line_in_a_text_that_ends_in_a_newline(name: str) -> None:
    text = RENDERED[name]
    assert text.endswith("}\n")
    assert len(read(name)["nvml"]) == len(
        re.findall(r'^  "nvml\w+\(.*\)": \{.*\},?$', text, re.MULTILINE)
    )


@each_file
def test_every_pair_of_gpus_is_asked_about_once(name: str) -> None:
    calls = read(name)["nvml"]
    pairs = [f"{one}, {other}" for one, other in combinations(handles(calls), 2)]
    levels = [f"nvmlDeviceGetTopologyCommonAncestor({pair})" for pair in pairs]
    p2p = [f"nvmlDeviceGetP2PStatus({pair}, {kind})" for pair in pairs for kind in P2P_KINDS]
    asked = [call for call in calls if "CommonAncestor" in call or "P2PStatus" in call]
    assert sorted(levels + p2p) == sorted(asked)


@each_file
def test_an_nvlink_between_two_gpus_shows_at_both(name: str) -> None:
    calls = read(name)["nvml"]
    at = {bus_id(calls, gpu): gpu for gpu in handles(calls)}
    ends = Counter(
        (gpu, at[value(calls, f"nvmlDeviceGetNvLinkRemotePciInfo_v2({gpu}, {link})")["busId"]])
        for gpu in at.values()
        for link in active_links(calls, gpu)
        if value(calls, f"nvmlDeviceGetNvLinkRemotePciInfo_v2({gpu}, {link})")["busId"] in at
    )
    assert ends == Counter({(peer, gpu): count for (gpu, peer), count in ends.items()})


@each_file
def test_an_active_nvlink_ends_in_a_gpu_of_the_machine_or_in_a_switch(name: str) -> None:
    recording = read(name)
    calls = recording["nvml"]
    texts = recording["files"]["text"]
    buses = {bus_id(calls, gpu) for gpu in handles(calls)}
    switches = {
        f"0000{path.split('/')[-2]}".upper() for path in texts if path.endswith("/class")
    } | {"FFFFFFFF:FF:FF.0"}
    ends = {
        value(calls, f"nvmlDeviceGetNvLinkRemotePciInfo_v2({gpu}, {link})")["busId"]
        for gpu in handles(calls)
        for link in active_links(calls, gpu)
    }
    assert ends <= buses | switches


@each_file
def test_memory_adds_up_in_both_versions(name: str) -> None:
    calls = read(name)["nvml"]
    for call, answer in calls.items():
        if call.startswith("nvmlDeviceGetMemoryInfo") and "ok" in answer:
            sizes = answer["ok"]
            parts = sizes["free"] + sizes["used"] + sizes.get("reserved", 0)
            assert sizes["total"] == parts, call
