import json
from itertools import pairwise
from pathlib import Path

import pytest
from fake_host import build_host
from recorded import Install, Recording, library, names, play, recording, without

from zerowiz.core.machine.types import Machine
from zerowiz.core.structs import replace
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.machine.read import read_machine
from zerowiz.probe.recording import (
    EnvironLog,
    Recorder,
    Replay,
    decode_recording,
    hash_uuids,
    render_recording,
)

HOST = {
    "proc/meminfo": "MemTotal: 64 kB\nMemFree: 16 kB\nMemAvailable: 32 kB\nSwapTotal: 9 kB\n",
    "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-3\n",
    "proc/464/comm": "python3\n",
    "proc/version": "Linux\n",
    "sys/devices/system/cpu/online": "0-7\n",
}

each_recording = pytest.mark.parametrize("name", names())


def record(root: Path, environ: dict[str, str] | None = None) -> tuple[Machine, str]:
    """The machine of that host and of the driver in place, and its recording."""
    build_host(root, HOST)
    recorder = Recorder(environ or {}, root, root)
    return read_machine(recorder.world), recorder.write("1.0")


def replayed(text: str) -> Machine:
    return read_machine(decode_recording(json.loads(text), "it"))


def hashed(machine: Machine) -> Machine:
    gpus = [replace(gpu, uuid=hash_uuids(gpu.uuid or "") or None) for gpu in machine.gpus]
    return replace(machine, gpus=tuple(gpus))


@each_recording
def test_a_recording_is_the_very_machine_again(name: str, tmp_path: Path, driver: Install) -> None:
    driver(library(name))
    live, text = record(tmp_path)
    assert hashed(live) == replayed(text)


@each_recording
def test_a_recording_that_is_written_anew_is_the_same_machine(name: str) -> None:
    content = recording(name)
    assert play(content) == play(json.loads(render_recording(content)))


def test_this_host_replays_from_its_recording(tmp_path: Path, driver: Install) -> None:
    driver(library("h200-x2"))
    recorder = Recorder({}, tmp_path)
    live, text = read_machine(recorder.world), recorder.write("1.0")
    assert hashed(live) == replayed(text)


def test_the_first_answer_of_a_host_that_changes_is_the_one_that_is_kept(
    tmp_path: Path, driver: Install
) -> None:
    driver(library("h200-x1"))
    build_host(tmp_path, HOST)
    recorder = Recorder({}, tmp_path, tmp_path)
    before = read_machine(recorder.world)
    build_host(tmp_path, {"proc/meminfo": "MemTotal: 1 kB\n"})
    assert before.host == read_machine(recorder.world).host
    assert before.host == replayed(recorder.write("1.0")).host


def lines_of(text: str, key: str) -> list[str]:
    """The lines of an object that is written one key a line."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == f'"{key}": {{')
    indent = lines[start][: -len(lines[start].lstrip())]
    end = next(i for i in range(start, len(lines)) if lines[i].rstrip(",") == f"{indent}}}")
    return lines[start + 1 : end]


def test_a_recording_has_one_answer_a_line(tmp_path: Path, driver: Install) -> None:
    driver(library("h200-x2"))
    _, text = record(tmp_path, {"SLURM_JOB_ID": "1", "SLURM_NNODES": "2"})
    content = json.loads(text)
    for key, answers in (
        ("nvml", content["nvml"]),
        ("environ", content["environ"]),
        *((key, content["files"][key]) for key in ("text", "names", "real", "space")),
    ):
        lines = lines_of(text, key)
        assert [json.dumps(name) for name in answers] == [
            line.strip().partition('": ')[0] + '"' for line in lines
        ]
    assert text.endswith("}\n")


def test_two_recordings_of_one_host_are_one_text(tmp_path: Path, driver: Install) -> None:
    driver(library("h200-x4"))
    texts = [record(tmp_path)[1] for _ in range(2)]
    # The room on the disk under the test's folder changes meanwhile.
    one, other = ([line for line in text.splitlines() if "free_" not in line] for text in texts)
    assert one == other


def test_a_recording_says_what_it_is(tmp_path: Path, driver: Install) -> None:
    driver(library("h200-x1"))
    content = json.loads(record(tmp_path)[1])
    assert (2, "recorded", "zerowiz 1.0") == (
        content["schema_version"],
        content["kind"],
        content["made_by"],
    )


def test_what_no_probe_read_is_not_in_it(tmp_path: Path, driver: Install) -> None:
    """Nor what a file says beside what was read there."""
    driver(library("h200-x1"))
    _, text = record(tmp_path, {"SECRET_TOKEN": "hunter2", "NCCL_DEBUG": "INFO"})
    assert "proc/version" not in text
    assert "SwapTotal" not in text
    assert "Name:" not in text
    assert "hunter2" not in text
    assert {} == json.loads(text)["environ"]


UUIDS = [f"GPU-{n}{n}1111{n}{n}-aaaa-bbbb-cccc-dddddddddd0{n}" for n in range(4)]


@pytest.fixture
def four(driver: Install) -> list[str]:
    """A driver of four GPUs with these UUIDs."""
    content = recording("h200-x4")
    for index, uuid in enumerate(UUIDS):
        content["nvml"][f"nvmlDeviceGetUUID(gpu{index})"] = {"ok": uuid}
    driver(Replay(content["nvml"]))
    return UUIDS


@pytest.mark.parametrize(
    ("visible", "selected"),
    [
        (f"{UUIDS[2]},{UUIDS[0]}", [2, 0]),
        (f"{UUIDS[3][:6]},{UUIDS[1][:8]}", [3, 1]),
        ("GPU-3,GPU-nothing,GPU-1", [3]),
        (UUIDS[1].upper(), [1]),
        (f"{UUIDS[1]}, {UUIDS[2]}", [1]),
        ("3,1", [3, 1]),
        ("2,GPU-1", [2]),
    ],
)
def test_cuda_visible_devices_selects_the_same_gpus_after_hashing(
    visible: str, selected: list[int], four: list[str], tmp_path: Path
) -> None:
    live, text = record(tmp_path, {"CUDA_VISIBLE_DEVICES": visible})
    assert selected == [gpu.index for gpu in live.gpus]
    # A note quotes the variable, which is not what it was.
    assert hashed(replace(live, notes=())) == replace(replayed(text), notes=())
    assert [] == [uuid for uuid in four if uuid[:10].lower() in text.lower()]


@pytest.mark.parametrize("visible", ["", "-1", "GPU-", "GPU-9", UUIDS[0].lower(), "MIG-1"])
def test_a_variable_that_hides_every_gpu_still_does_after_hashing(
    visible: str, four: list[str], tmp_path: Path
) -> None:
    build_host(tmp_path, HOST)
    recorder = Recorder({"CUDA_VISIBLE_DEVICES": visible}, tmp_path, tmp_path)
    with pytest.raises(PreflightError, match=f"hides all {len(four)} usable GPUs"):
        read_machine(recorder.world)
    with pytest.raises(PreflightError, match=f"hides all {len(four)} usable GPUs"):
        replayed(recorder.write("1.0"))


def test_slices_are_selected_by_their_hashed_uuids(tmp_path: Path, driver: Install) -> None:
    content = recording("synthetic/a100-mig")
    driver(Replay(content["nvml"]))
    uuid = content["nvml"]["nvmlDeviceGetUUID(gpu1.mig2)"]["ok"]
    live, text = record(tmp_path, {"CUDA_VISIBLE_DEVICES": uuid})
    assert ["1:2"] == [gpu.label for gpu in live.gpus]
    assert hashed(live) == replayed(text)
    assert uuid not in text


@pytest.mark.parametrize("code", [4, 9, 12, 13, 18, 999, 777])
def test_a_driver_that_does_not_start_replays_as_the_same_error(
    code: int, tmp_path: Path, driver: Install
) -> None:
    driver(Replay({"nvmlInitWithFlags(0)": {"err": code}}))
    recorder = Recorder({}, tmp_path, tmp_path)
    with pytest.raises(PreflightError) as live:
        read_machine(recorder.world)
    text = recorder.write("1.0")
    assert {"nvmlInitWithFlags(0)": {"err": code}} == json.loads(text)["nvml"]
    with pytest.raises(PreflightError) as again:
        replayed(text)
    assert (live.value.message, live.value.hints) == (again.value.message, again.value.hints)


def test_no_usable_gpu_replays_as_the_same_error(tmp_path: Path, driver: Install) -> None:
    content = without(recording("h200-x2"), "nvmlDeviceGetHandleByIndex_v2")
    driver(Replay(content["nvml"]))
    recorder = Recorder({}, tmp_path, tmp_path)
    with pytest.raises(PreflightError) as live:
        read_machine(recorder.world)
    with pytest.raises(PreflightError) as again:
        replayed(recorder.write("1.0"))
    assert (live.value.message, live.value.hints) == (again.value.message, again.value.hints)


def test_an_environment_remembers_what_was_looked_up_and_is_set() -> None:
    environ = EnvironLog({"A": "1", "B": "2", "C": "3"})
    assert "1" == environ["A"]
    assert environ.get("D") is None
    assert "B" in environ
    assert ["A", "B", "C"] == list(environ)
    assert 3 == len(environ)
    assert {"A": "1", "B": "2"} == environ.seen


def test_an_empty_part_is_written_on_one_line() -> None:
    assert '{\n "nvml": {},\n "x": [1, {"y": 2}]\n}\n' == render_recording(
        {"nvml": {}, "x": [1, {"y": 2}]}
    )


@pytest.mark.parametrize("key", ["nvml", "environ", "files"])
@pytest.mark.parametrize("value", [None, [], "x", 5])
def test_a_recording_without_one_of_its_parts_is_refused_by_name(key: str, value: object) -> None:
    content: Recording = {**recording("h200-x1"), key: value}
    with pytest.raises(UsageError, match=f"`m.json: {key}` is not an object with answers"):
        decode_recording(content, "m.json")


def test_the_files_of_every_recording_are_in_the_order_of_the_questions() -> None:
    """A recording is compared by eye: `nvmlInitWithFlags` first, GPU after GPU."""
    for name in names():
        calls = list(recording(name)["nvml"])
        opened = [call for call in calls if call.startswith("nvmlDeviceGetHandleByIndex_v2(")]
        assert "nvmlInitWithFlags(0)" == calls[0]
        numbers = [int(call[30:-1]) for call in opened]
        assert all(one < other for one, other in pairwise(numbers))
