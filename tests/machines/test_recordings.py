"""A recording of tests/machines is the machine that was recorded, and holds no name of it."""

import json
import re
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from cli.harness import Run
from fake_host import build_host
from machines.make_synthetic import FOLDER, VARIANTS, render_all
from machines.record import hash_addresses, record, render_recording, scrub_calls
from recorded import BrokenAnswerError, Install, library, names, play, recording

from zerowiz.core.machine.types import Machine
from zerowiz.core.structs import replace
from zerowiz.probe.files import hash_uuids

each_recording = pytest.mark.parametrize("name", names())


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


def build(root: Path, cgroup: str, *, v1: bool = False) -> None:
    """A host in that cgroup, of which everything can be read."""
    inside = [part for part in cgroup.split("/") if part not in ("", "..")]
    folder = "/".join(["sys/fs/cgroup", *(["memory"] if v1 else []), *inside])
    line = f"9:memory:{cgroup}\n3:cpu,cpuacct:{cgroup}\n" if v1 else f"0::{cgroup}\n"
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max",)
    limits = dict(zip(names, (40 * GIB, 8 * GIB), strict=False))
    files = SCRUB_FILES | {"proc/self/cgroup": line}
    build_host(
        root, files | {f"{folder}/{name}": limit for name, limit in limits.items()}, SCRUB_LINKS
    )


def hashed(machine: Machine) -> Machine:
    gpus = [replace(gpu, uuid=hash_uuids(gpu.uuid or "") or None) for gpu in machine.gpus]
    return replace(machine, gpus=tuple(gpus))


def replayed(text: str) -> Machine:
    return play(json.loads(text))


@each_recording
def test_a_recording_is_the_very_machine_again(name: str, tmp_path: Path, driver: Install) -> None:
    driver(library(name))
    live, content = record(tmp_path)
    assert hashed(live) == replayed(render_recording(content))


@each_recording
def test_a_recording_that_is_written_anew_is_the_same_machine(name: str) -> None:
    content = recording(name)
    assert play(content) == replayed(render_recording(content))


def test_the_files_of_every_recording_are_in_the_order_of_the_questions() -> None:
    """A recording is compared by eye: `nvmlInitWithFlags` first, GPU after GPU."""
    for name in names():
        calls = list(recording(name)["nvml"])
        opened = [call for call in calls if call.startswith("nvmlDeviceGetHandleByIndex_v2(")]
        assert "nvmlInitWithFlags(0)" == calls[0]
        numbers = [int(call[30:-1]) for call in opened]
        assert all(one < other for one, other in pairwise(numbers))


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("nvmlDeviceGetCount_v2()", {"ok": "x"}),
        ("nvmlDeviceGetName(gpu0)", []),
        ("nvmlDeviceGetFieldValues(gpu0, 91, 0)", {"err": "x"}),
        ("nvmlDeviceGetMemoryInfo_v2(gpu0)", {"ok": {"total": 2**64}}),
    ],
)
def test_an_answer_that_does_not_fit_its_call_is_named(call: str, answer: object) -> None:
    content = recording("h200-x1")
    content["nvml"][call] = answer
    with pytest.raises(BrokenAnswerError) as caught:
        play(content)
    assert f"the recorded answer of `{call}` is broken" in str(caught.value)


def assert_clean(text: str) -> None:
    uuids = {gpu["ok"] for call, gpu in recording("h200-x2")["nvml"].items() if "UUID" in call}
    assert 2 == len(uuids)
    assert [] == [secret for secret in (*SECRETS, *uuids) if secret.lower() in text.lower()]


@pytest.mark.parametrize("v1", [False, True])
@pytest.mark.parametrize("cgroup", CGROUPS)
def test_no_name_in_a_cgroup_survives_and_its_limit_does(
    cgroup: str, v1: bool, tmp_path: Path, driver: Install
) -> None:
    driver(library("h200-x2"))
    build(tmp_path, CGROUPS[cgroup], v1=v1)
    live, content = record(tmp_path)
    text = render_recording(content)
    assert_clean(text)
    assert live.host == replayed(text).host
    assert (f"cgroup v{1 if v1 else 2}", (32 if v1 else 40) * GIB) == (
        live.host.available_by,
        live.host.available_bytes,
    )


def test_the_hash_of_an_address_is_of_its_length_and_kind() -> None:
    addresses = [f"enx{MAC}", f"ibx{GUID}", f"rocex{GUID}", f"wlx{MAC}"]
    renamed = [hash_addresses(name) for name in addresses]
    assert ["enx", "ibx", "rocex", "wlx"] == [name[:-12] for name in renamed]
    assert [] == [name for name in renamed if MAC in name or GUID in name]
    others = ["eth0", "enp3s0f0np0", "mlx5_0", "0x0123456789abcdef", "lo"]
    assert others == [hash_addresses(name) for name in others]


def test_one_nvlink_domain_stays_one_and_a_node_alone_stays_alone() -> None:
    domains = [list(range(16)), list(range(16)), list(range(16, 32)), [0] * 16]
    calls = {f"call({n})": {"ok": {"clusterUuid": each}} for n, each in enumerate(domains)}
    one, same, other, alone = (each["ok"]["clusterUuid"] for each in scrub_calls(calls).values())
    assert one == same
    assert 4 == len({tuple(each) for each in (one, other, alone, domains[0])})
    assert [0] * 16 == alone


# What a person saves of their machine is a description, of which the same holds.


@pytest.mark.parametrize("scheduler", JOBS)
def test_no_secret_of_a_job_is_saved(
    scheduler: str, here: Run, folder: Path, driver: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(library("h200-x2"))
    for name, value in (BASE | JOBS[scheduler]).items():
        monkeypatch.setenv(name, value)
    done = here("machine", "--nodes", "1", "--save", str(folder / "node.json"))
    assert 0 == done.code, done.stderr
    assert_clean((folder / "node.json").read_text())


# What holds for the synthetic recordings: their files, their sources, and their links.

RENDERED = render_all()
each_file = pytest.mark.parametrize("name", sorted(RENDERED))

# P2P reads, writes and NVLink (nvml.h, nvmlGpuP2PCapsIndex_t).
P2P_KINDS = (0, 1, 2)


def read_synthetic(name: str) -> dict[str, Any]:
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
    assert len(VARIANTS) == len(RENDERED), "two machines share a name"


@each_file
def test_a_file_is_synthetic_names_its_sources_and_has_a_call_to_a_line(name: str) -> None:
    recording, text = read_synthetic(name), RENDERED[name]
    assert (2, "synthetic") == (recording["schema_version"], recording["kind"])
    assert any(re.match(r"https://\S+: ", source) for source in recording["sources"])
    assert recording["sources"][-1].startswith("Filled in: ")
    answers = recording["nvml"].values()
    assert [] == [answer for answer in answers if list(answer) not in (["ok"], ["err"])]
    assert text.endswith("}\n")
    lines = re.findall(r'^  "nvml\w+\(.*\)": \{.*\},?$', text, re.MULTILINE)
    assert len(answers) == len(lines)


@each_file
def test_every_pair_of_gpus_is_asked_about_once(name: str) -> None:
    calls = read_synthetic(name)["nvml"]
    pairs = [f"{one}, {other}" for one, other in combinations(handles(calls), 2)]
    levels = [f"nvmlDeviceGetTopologyCommonAncestor({pair})" for pair in pairs]
    p2p = [f"nvmlDeviceGetP2PStatus({pair}, {kind})" for pair in pairs for kind in P2P_KINDS]
    asked = [call for call in calls if "CommonAncestor" in call or "P2PStatus" in call]
    assert sorted(levels + p2p) == sorted(asked)


@each_file
def test_an_nvlink_between_two_gpus_shows_at_both(name: str) -> None:
    calls = read_synthetic(name)["nvml"]
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
    recording = read_synthetic(name)
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
    calls = read_synthetic(name)["nvml"]
    for call, answer in calls.items():
        if call.startswith("nvmlDeviceGetMemoryInfo") and "ok" in answer:
            sizes = answer["ok"]
            parts = sizes["free"] + sizes["used"] + sizes.get("reserved", 0)
            assert sizes["total"] == parts, call
