import json
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from fake_host import build_host
from hypothesis import given
from hypothesis import strategies as st
from recorded import Install, Recording, library, names, play, recording, without

from zerowiz.core.machine.job_gpus import visible_gpus
from zerowiz.core.machine.types import Gpu, Machine
from zerowiz.core.structs import replace
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.host_files import (
    FOLDER,
    FileAnswers,
    Files,
    FilesLog,
    HostFiles,
    RecordedFiles,
    hash_addresses,
    hash_uuids,
)
from zerowiz.probe.machine.host import read_host
from zerowiz.probe.machine.network import read_network
from zerowiz.probe.machine.read_machine import read_machine
from zerowiz.probe.machine_recording import (
    EnvironLog,
    Recorder,
    Replay,
    decode_recording,
    render_recording,
    scrub_calls,
    scrub_environ,
    scrub_files,
)

FILES = {"proc/meminfo": "MemTotal: 1 kB\n", "sys/block/a/size": "8\n", "sys/block/b/size": "9\n"}
LINKS = {"sys/class/block/a": "sys/block/a"}
PATHS = ("proc/meminfo", "sys/block", "sys/block/a", "sys/class/block/a", "not/there", FOLDER)


@pytest.fixture
def host(tmp_path: Path) -> HostFiles:
    return build_host(tmp_path, FILES, LINKS)


def ask_all(files: Files) -> list[object]:
    asks = (files.text, files.names, files.real, files.space, files.opens)
    return [ask(path) for ask in asks for path in PATHS]


def test_a_file_is_its_text(host: HostFiles) -> None:
    assert "8\n" == host.text("sys/class/block/a/size")
    assert host.text("sys/block") is None
    assert host.text("not/there") is None


def test_bytes_that_are_no_text_are_replaced(host: HostFiles) -> None:
    (host.root / "binary").write_bytes(b"a\xffb")
    assert "a\ufffdb" == host.text("binary")


@pytest.mark.parametrize("what", ["pipe", "device"])
def test_what_never_ends_is_no_text(host: HostFiles, what: str) -> None:
    """A variable names the file with the hosts of a job, and may name anything."""
    if what == "pipe":
        os.mkfifo(host.root / what)
    else:
        (host.root / what).symlink_to("/dev/zero")
    assert host.text(what) is None


def test_a_folder_is_its_sorted_names(host: HostFiles) -> None:
    assert ("a", "b") == host.names("sys/block")
    assert () == host.names("proc/meminfo")
    assert () == host.names("not/there")


def test_a_link_is_resolved_within_the_root(host: HostFiles) -> None:
    assert "sys/block/a" == host.real("sys/class/block/a")
    assert host.real("not/there") is None


def test_a_link_to_itself_leads_nowhere(host: HostFiles) -> None:
    (host.root / "loop").symlink_to("loop")
    assert host.real("loop") is None
    assert host.text("loop") is None


def test_a_link_out_of_the_root_leads_nowhere(host: HostFiles) -> None:
    (host.root / "out").symlink_to("/")
    assert host.real("out") is None


def test_the_folder_of_the_job_has_a_name_of_its_own(host: HostFiles, tmp_path: Path) -> None:
    elsewhere = HostFiles(root=Path("/"), folder=tmp_path)
    assert host.names("") == elsewhere.names(FOLDER)
    space = elsewhere.space(FOLDER)
    assert space
    assert 0 < space.free_bytes <= space.total_bytes
    assert 2 == len(space.device.split(":"))


def test_a_file_that_is_there_opens(host: HostFiles) -> None:
    assert host.opens("proc/meminfo")
    assert not host.opens("not/there")


def test_a_log_changes_no_answer(host: HostFiles) -> None:
    # The free space may change between two questions: the same log is asked twice.
    log = FilesLog(files=host)
    assert ask_all(log) == ask_all(log)
    assert [host.text(path) for path in PATHS] == [log.text(path) for path in PATHS]


def test_a_recording_answers_as_the_host_did(host: HostFiles) -> None:
    log = FilesLog(files=host)
    assert ask_all(log) == ask_all(RecordedFiles(answers=log.answers))


def test_what_was_not_asked_is_not_there(host: HostFiles) -> None:
    recorded = RecordedFiles(answers=FilesLog(files=host).answers)
    nothing = [None] * 6 + [()] * 6 + [None] * 12 + [False] * 6
    assert nothing == ask_all(recorded)


def test_this_host_replays_from_its_recording() -> None:
    log = FilesLog(files=HostFiles())
    live = (read_host(log), read_network(log, {}))
    recorded = RecordedFiles(answers=log.answers)
    assert live == (read_host(recorded), read_network(recorded, {}))


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


def test_this_host_replays_from_its_recording_of_recording(tmp_path: Path, driver: Install) -> None:
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


GIB = 2**30
USER, SCRUB_HOST, OTHER_HOST, JOB = "jdoe", "gpunode17", "gpunode18", "4711042"
POD = "3f0c9a3e_5b1d_4e57_9d3e_7d1b5b0a6c11"
CONTAINER = "9f2d8c7b6a5e4d3c2b1a0f9e8d7c6b5a4f3e2d1c0b9a8f7e6d5c4b3a2f1e0d9c"
MAC, GUID = "0123456789ab", "043f720300b95e12"
HOME, PROGRAMS = "/home/jdoe", "/opt/acme/bin"

SECRETS = (USER, SCRUB_HOST, OTHER_HOST, JOB, POD, CONTAINER, MAC, GUID, HOME, PROGRAMS)

# Of every kind of variable some that no probe reads, and all that it reads.
BASE = {
    "HOME": HOME,
    "PATH": f"/usr/bin:{HOME}/bin:/dev/shm/{USER}/bin:{PROGRAMS}",
    "USER": USER,
    "HOSTNAME": SCRUB_HOST,
    "PWD": f"{HOME}/project",
    "NCCL_SOCKET_IFNAME": f"=enx{MAC}",
    "NCCL_IB_HCA": f"rocex{GUID}:1",
    "NCCL_DEBUG_FILE": f"{HOME}/nccl.log",
    "CUDA_CACHE_PATH": f"{HOME}/cache",
    "MASTER_ADDR": SCRUB_HOST,
}

JOBS = {
    "SLURM": {
        "SLURM_JOB_ID": JOB,
        "SLURM_JOB_USER": USER,
        "SLURM_JOB_NODELIST": "gpunode[17-18]",
        "SLURM_CONF": f"/etc/slurm/{SCRUB_HOST}.conf",
        "SLURMD_NODENAME": SCRUB_HOST,
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_MEM_PER_NODE": "32768",
    },
    "PBS": {
        "PBS_JOBID": f"{JOB}.{SCRUB_HOST}",
        "PBS_NODEFILE": f"/var/spool/pbs/aux/{JOB}.{SCRUB_HOST}",
        "PBS_O_HOME": HOME,
        "PBS_SERVER": SCRUB_HOST,
        "PBS_NUM_NODES": "",
        "PBS_NGPUS": "2",
    },
    "LSF": {
        "LSB_JOBID": JOB,
        "LSB_MCPU_HOSTS": f"{SCRUB_HOST} 8 {OTHER_HOST} 8",
        "LSB_HOSTS": f"{SCRUB_HOST} {SCRUB_HOST} {OTHER_HOST}",
        "LSF_ENVDIR": f"{HOME}/lsf",
    },
    "Kubernetes": {
        "KUBERNETES_SERVICE_HOST": SCRUB_HOST,
        "KUBERNETES_SERVICE_PORT": "443",
        "PET_MASTER_ADDR": SCRUB_HOST,
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "WORLD_SIZE": "4",
    },
    "torchrun": {
        "TORCHELASTIC_RUN_ID": f"{USER}-{JOB}",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "4",
    },
    "Open MPI": {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
}

CGROUPS = {
    "slurm": f"/system.slice/slurmstepd.scope/{SCRUB_HOST}/uid_{USER}/job_{JOB}/step_0",
    "pod": f"/kubepods.slice/kubepods-burstable-pod{POD}.slice/cri-containerd-{CONTAINER}.scope",
    "colons": f"/system.slice/kubepods-burstable-pod{POD}.slice:cri-containerd:{CONTAINER}",
    "above": f"/../../{CONTAINER}",
    "root": "/",
}

SCRUB_FILES: dict[str, str | int] = {
    "proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {48 * GIB // 1024} kB\n",
    "proc/self/status": f"Name:\t{USER}-train\nCpus_allowed_list:\t0-15\n",
    "proc/self/limits": f"Limit of {USER}\nMax locked memory         65536       65536    bytes\n",
    "proc/self/environ": f"HOME={HOME}\0",
    "proc/sys/kernel/hostname": SCRUB_HOST,
    "etc/hostname": SCRUB_HOST,
    f"var/spool/pbs/aux/{JOB}.{SCRUB_HOST}": f"{SCRUB_HOST}\n{SCRUB_HOST}\n{OTHER_HOST}\n",
    f"dev/shm/{USER}/bin/srun": "",
    "opt/acme/bin/srun": "",
    "home/jdoe/bin/srun": "",
    "dev/infiniband/uverbs0": "",
    f"sys/class/net/enx{MAC}/type": "1",
    f"sys/class/net/enx{MAC}/address": "01:23:45:67:89:ab",
    f"sys/class/net/enx{MAC}/speed": "25000",
    f"sys/class/net/enx{MAC}/operstate": "up",
    f"sys/class/infiniband/rocex{GUID}/ports/1/link_layer": "Ethernet",
    f"sys/class/infiniband/rocex{GUID}/ports/1/state": "4: ACTIVE",
    f"sys/class/infiniband/rocex{GUID}/ports/1/rate": "100 Gb/sec (4X EDR)",
    f"sys/class/infiniband/rocex{GUID}/ports/1/gid_attrs/types/0": "RoCE v2",
    f"sys/class/infiniband/rocex{GUID}/node_guid": "043f:7203:00b9:5e12",
    "sys/class/infiniband_verbs/uverbs0/ibdev": f"rocex{GUID}",
}
SCRUB_LINKS = {
    f"sys/class/net/enx{MAC}/device": "sys/devices/pci0000:00/0000:00:03.0",
    f"sys/class/infiniband/rocex{GUID}/device": "sys/devices/pci0000:00/0000:00:04.0",
}


def recorder(root: Path, environ: dict[str, str], cgroup: str, *, v1: bool = False) -> Recorder:
    """A job of that environment, in that cgroup, of whose host everything can be read."""
    inside = [part for part in cgroup.split("/") if part not in ("", "..")]
    folder = "/".join(["sys/fs/cgroup", *(["memory"] if v1 else []), *inside])
    line = f"9:memory:{cgroup}\n3:cpu,cpuacct:{cgroup}\n" if v1 else f"0::{cgroup}\n"
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max",)
    limits = dict(zip(names, (40 * GIB, 8 * GIB), strict=False))
    files = SCRUB_FILES | {"proc/self/cgroup": line}
    build_host(
        root, files | {f"{folder}/{name}": limit for name, limit in limits.items()}, SCRUB_LINKS
    )
    return Recorder(environ, root, root)


def anonymous(machine: Machine) -> Machine:
    """The machine without the names that a recording does not keep."""
    nics = tuple(
        replace(nic, name=re.sub(r"(?<=x).*", "", nic.name)) for nic in machine.network.nics
    )
    gpus = tuple(replace(gpu, uuid=None) for gpu in machine.gpus)
    return replace(machine, gpus=gpus, network=replace(machine.network, nics=nics))


def assert_clean(text: str) -> None:
    uuids = {gpu["ok"] for call, gpu in recording("h200-x2")["nvml"].items() if "UUID" in call}
    assert 2 == len(uuids)
    assert [] == [secret for secret in (*SECRETS, *uuids) if secret.lower() in text.lower()]


@pytest.mark.parametrize("scheduler", JOBS)
def test_no_secret_of_a_job_survives_and_the_machine_does(
    scheduler: str, tmp_path: Path, driver: Install
) -> None:
    driver(library("h200-x2"))
    job = recorder(tmp_path, BASE | JOBS[scheduler], CGROUPS["slurm"])
    live = read_machine(job.world)
    text = job.write("1.0")
    assert_clean(text)
    replayed = read_machine(decode_recording(json.loads(text), "it"))
    assert anonymous(live) == anonymous(replayed)
    assert live.allocation
    assert scheduler == live.allocation.scheduler
    assert live.allocation == replayed.allocation
    told = (live.allocation.nodes, live.allocation.gpus_per_node)
    assert (2, None if scheduler in {"PBS", "LSF"} else 2) == told


def test_the_memory_of_a_job_survives(tmp_path: Path, driver: Install) -> None:
    driver(library("h200-x2"))
    job = recorder(tmp_path, BASE | JOBS["SLURM"], CGROUPS["slurm"])
    live = read_machine(job.world)
    replayed = read_machine(decode_recording(json.loads(job.write("1.0")), "it"))
    assert live.allocation == replayed.allocation
    assert (32 * GIB, "SLURM") == (replayed.host.available_bytes, replayed.host.available_by)


@pytest.mark.parametrize("v1", [False, True])
@pytest.mark.parametrize("cgroup", CGROUPS)
def test_no_name_in_a_cgroup_survives_and_its_limit_does(
    cgroup: str, v1: bool, tmp_path: Path, driver: Install
) -> None:
    driver(library("h200-x2"))
    job = recorder(tmp_path, BASE, CGROUPS[cgroup], v1=v1)
    live = read_machine(job.world)
    text = job.write("1.0")
    assert_clean(text)
    assert anonymous(live) == anonymous(read_machine(decode_recording(json.loads(text), "it")))
    assert (f"cgroup v{1 if v1 else 2}", (32 if v1 else 40) * GIB) == (
        live.host.available_by,
        live.host.available_bytes,
    )


def test_a_level_of_a_cgroup_may_be_called_as_the_mount_is(tmp_path: Path, driver: Install) -> None:
    driver(library("h200-x2"))
    job = recorder(tmp_path, {}, "/memory/cpu", v1=True)
    live = read_machine(job.world)
    replayed = read_machine(decode_recording(json.loads(job.write("1.0")), "it"))
    assert "cgroup v1" == live.host.available_by
    assert live.host == replayed.host


def fail_twice(root: Path, environ: dict[str, str]) -> tuple[PreflightError, PreflightError]:
    """Why nothing can be read there, live and from the recording, which holds no secret."""
    host = recorder(root, environ, CGROUPS["slurm"])
    with pytest.raises(PreflightError) as live:
        read_machine(host.world)
    text = host.write("1.0")
    assert_clean(text)
    with pytest.raises(PreflightError) as replayed:
        read_machine(decode_recording(json.loads(text), "it"))
    assert live.value.message == replayed.value.message
    return live.value, replayed.value


NO_DRIVER = {"nvmlInitWithFlags(0)": {"err": 9}}


@pytest.mark.parametrize("scheduler", ["SLURM", "PBS", "LSF"])
def test_a_job_without_a_driver_replays_as_such(
    scheduler: str, tmp_path: Path, driver: Install
) -> None:
    driver(Replay(NO_DRIVER))
    live, replayed = fail_twice(tmp_path, BASE | JOBS[scheduler])
    assert live.hints == replayed.hints
    assert [] == [hint for hint in live.hints if "login node" in hint]


@pytest.mark.parametrize(
    ("scheduler", "variable"),
    [("SLURM", "SLURM_CONF"), ("PBS", "PBS_SERVER"), ("LSF", "LSF_ENVDIR")],
)
def test_a_login_node_without_a_driver_replays_as_such(
    scheduler: str, variable: str, tmp_path: Path, driver: Install
) -> None:
    driver(Replay(NO_DRIVER))
    environ = {**BASE, "PATH": "/usr/bin", variable: JOBS[scheduler][variable]}
    live, replayed = fail_twice(tmp_path, environ)
    assert live.hints == replayed.hints
    assert f"login node of {scheduler}" in live.hints[0]


def test_the_folders_of_programs_stay_at_home_and_with_them_what_they_told(
    tmp_path: Path, driver: Install
) -> None:
    driver(Replay(NO_DRIVER))
    live, replayed = fail_twice(tmp_path, BASE)
    assert "login node of SLURM" in live.hints[0]
    assert live.hints[1:] == replayed.hints


def test_adapters_keep_apart_and_keep_what_they_belong_to(tmp_path: Path, driver: Install) -> None:
    driver(library("h200-x2"))
    job = recorder(tmp_path, BASE, CGROUPS["root"])
    machine = read_machine(job.world)
    assert ["rocex...", "enx..."] == [nic.name for nic in machine.network.nics]
    assert [None, None] == [nic.unusable for nic in machine.network.nics]


def test_the_hash_of_an_address_is_of_its_length_and_kind() -> None:
    names = [f"enx{MAC}", f"ibx{GUID}", f"rocex{GUID}", f"wlx{MAC}"]
    hashed = [hash_addresses(name) for name in names]
    assert ["enx", "ibx", "rocex", "wlx"] == [name[:-12] for name in hashed]
    assert [] == [name for name in hashed if MAC in name or GUID in name]
    assert hashed == [hash_addresses(f"^{name}:1")[1:-2] for name in names]


@pytest.mark.parametrize("text", ["eth0", "enp3s0f0np0", "mlx5_0", "0x0123456789abcdef", "lo"])
def test_a_name_without_an_address_stays(text: str) -> None:
    assert text == hash_addresses(text)


SCRUB_UUIDS = tuple(
    gpu.removeprefix("GPU-")
    for gpu in (
        "GPU-59d69932-6ed4-29e9-5fe5-716d097ac8af",
        "GPU-1c530341-f7bb-056d-1d9f-edd563bdac03",
        "GPU-1c531fdf-9dd2-c25e-ee18-69568360df44",
    )
)


def select(visible: str, uuids: tuple[str, ...]) -> list[int]:
    known = [Gpu(index=place, name="it", uuid=uuid) for place, uuid in enumerate(uuids)]
    return [gpu.index for gpu in visible_gpus(visible, known)]


def scrub_visible(visible: str, uuids: tuple[str, ...]) -> str:
    return scrub_environ({"CUDA_VISIBLE_DEVICES": visible}, uuids)["CUDA_VISIBLE_DEVICES"]


GPUS = tuple(f"GPU-{uuid}" for uuid in SCRUB_UUIDS)
PREFIXES = [gpu[:length] for gpu in GPUS for length in (4, 6, 8, 9, 20, 40)]
entries = st.sampled_from(
    [
        *PREFIXES,
        *[prefix.upper() for prefix in PREFIXES],
        *[f"GPU-{uuid.upper()}" for uuid in SCRUB_UUIDS],
        *[f" {gpu}" for gpu in GPUS],
        *[f"{gpu}{after}" for gpu in GPUS for after in (" ", "zz", "\t")],
        *[gpu.lower() for gpu in GPUS],
        *[f"{number}{gpu}" for number, gpu in enumerate(GPUS)],
        *[f"MIG-{uuid}" for uuid in SCRUB_UUIDS],
        *[f"MIG-{gpu}/1/0" for gpu in GPUS],
        *("", "0", " 1", "2", "-1", "9", "none", "0x1", "MIG-", "GPU-zzz"),
    ]
)


@given(st.lists(entries, min_size=1, max_size=4).map(",".join))
def test_what_cuda_sees_survives_and_no_uuid_does(visible: str) -> None:
    hashed = tuple(map(hash_uuids, GPUS))
    scrubbed = scrub_visible(visible, GPUS)
    assert select(visible, GPUS) == select(scrubbed, hashed)
    assert [] == [uuid for uuid in SCRUB_UUIDS if uuid[:6].lower() in scrubbed.lower()]


@pytest.mark.parametrize("visible", ["", "0", "2,1", "-1", " 1 , 0", "NoDevFiles"])
def test_numbers_stay_as_they_were_said(visible: str) -> None:
    assert visible == scrub_visible(visible, GPUS)


@pytest.mark.parametrize("uuid", ["MIG-GPU-{}/3/0", "MIG-{}"])
def test_a_slice_is_still_selected_by_its_uuid(uuid: str) -> None:
    known = tuple(uuid.format(each) for each in SCRUB_UUIDS)
    scrubbed = scrub_visible(known[1], known)
    assert [1] == select(scrubbed, tuple(map(hash_uuids, known)))
    assert SCRUB_UUIDS[1] not in scrubbed


def test_equal_uuids_are_hashed_equal_in_any_case_and_others_apart() -> None:
    hashed = [hash_uuids(gpu) for gpu in GPUS]
    assert 3 == len({*hashed, *GPUS} - {*GPUS})
    assert hashed == [f"GPU-{hash_uuids(uuid.upper())}" for uuid in SCRUB_UUIDS]


def test_one_nvlink_domain_stays_one_and_a_node_alone_stays_alone() -> None:
    domains = [list(range(16)), list(range(16)), list(range(16, 32)), [0] * 16]
    calls = {f"call({n})": {"ok": {"clusterUuid": each}} for n, each in enumerate(domains)}
    one, same, other, alone = (each["ok"]["clusterUuid"] for each in scrub_calls(calls).values())
    assert one == same
    assert 4 == len({tuple(each) for each in (one, other, alone, domains[0])})
    assert [0] * 16 == alone


def test_files_that_no_plan_rests_on_stay_at_home() -> None:
    paths = ("etc/hostname", "home/jdoe/x", "dev/shm/jdoe/x", "proc/self/cwd/srun", "dev/sda")
    there = FileAnswers(
        text=dict.fromkeys(paths, "x"),
        real=dict.fromkeys(paths, "x"),
        names=dict.fromkeys(paths, ("x",)),
    )
    assert FileAnswers() == scrub_files(there, {})


def test_a_node_file_that_cannot_be_read_is_still_none() -> None:
    files = scrub_files(FileAnswers(text={"pbs/nodes": None}), {"PBS_NODEFILE": "/pbs/nodes"})
    assert {"PBS_NODEFILE": None} == files.text
