import json
import re
from pathlib import Path

import pytest
from fake_host import build_host
from hypothesis import given
from hypothesis import strategies as st
from recorded import Install, library, recording

from zerowiz.core.machine.job_gpus import visible_gpus
from zerowiz.core.machine.types import Gpu, Machine
from zerowiz.core.structs import replace
from zerowiz.errors import PreflightError
from zerowiz.probe.machine.read import read_machine
from zerowiz.probe.recording import (
    FileAnswers,
    Recorder,
    Replay,
    decode_recording,
    hash_addresses,
    hash_uuids,
    scrub_calls,
    scrub_environ,
    scrub_files,
)

GIB = 2**30
USER, HOST, OTHER_HOST, JOB = "jdoe", "gpunode17", "gpunode18", "4711042"
POD = "3f0c9a3e_5b1d_4e57_9d3e_7d1b5b0a6c11"
CONTAINER = "9f2d8c7b6a5e4d3c2b1a0f9e8d7c6b5a4f3e2d1c0b9a8f7e6d5c4b3a2f1e0d9c"
MAC, GUID = "0123456789ab", "043f720300b95e12"
HOME, PROGRAMS = "/home/jdoe", "/opt/acme/bin"

SECRETS = (USER, HOST, OTHER_HOST, JOB, POD, CONTAINER, MAC, GUID, HOME, PROGRAMS)

# Of every kind of variable some that no probe reads, and all that it reads.
BASE = {
    "HOME": HOME,
    "PATH": f"/usr/bin:{HOME}/bin:/dev/shm/{USER}/bin:{PROGRAMS}",
    "USER": USER,
    "HOSTNAME": HOST,
    "PWD": f"{HOME}/project",
    "NCCL_SOCKET_IFNAME": f"=enx{MAC}",
    "NCCL_IB_HCA": f"rocex{GUID}:1",
    "NCCL_DEBUG_FILE": f"{HOME}/nccl.log",
    "CUDA_CACHE_PATH": f"{HOME}/cache",
    "MASTER_ADDR": HOST,
}

JOBS = {
    "SLURM": {
        "SLURM_JOB_ID": JOB,
        "SLURM_JOB_USER": USER,
        "SLURM_JOB_NODELIST": "gpunode[17-18]",
        "SLURM_CONF": f"/etc/slurm/{HOST}.conf",
        "SLURMD_NODENAME": HOST,
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_MEM_PER_NODE": "32768",
    },
    "PBS": {
        "PBS_JOBID": f"{JOB}.{HOST}",
        "PBS_NODEFILE": f"/var/spool/pbs/aux/{JOB}.{HOST}",
        "PBS_O_HOME": HOME,
        "PBS_SERVER": HOST,
        "PBS_NUM_NODES": "",
        "PBS_NGPUS": "2",
    },
    "LSF": {
        "LSB_JOBID": JOB,
        "LSB_MCPU_HOSTS": f"{HOST} 8 {OTHER_HOST} 8",
        "LSB_HOSTS": f"{HOST} {HOST} {OTHER_HOST}",
        "LSF_ENVDIR": f"{HOME}/lsf",
    },
    "Kubernetes": {
        "KUBERNETES_SERVICE_HOST": HOST,
        "KUBERNETES_SERVICE_PORT": "443",
        "PET_MASTER_ADDR": HOST,
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
    "slurm": f"/system.slice/slurmstepd.scope/{HOST}/uid_{USER}/job_{JOB}/step_0",
    "pod": f"/kubepods.slice/kubepods-burstable-pod{POD}.slice/cri-containerd-{CONTAINER}.scope",
    "colons": f"/system.slice/kubepods-burstable-pod{POD}.slice:cri-containerd:{CONTAINER}",
    "above": f"/../../{CONTAINER}",
    "root": "/",
}

FILES: dict[str, str | int] = {
    "proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {48 * GIB // 1024} kB\n",
    "proc/self/status": f"Name:\t{USER}-train\nCpus_allowed_list:\t0-15\n",
    "proc/self/limits": f"Limit of {USER}\nMax locked memory         65536       65536    bytes\n",
    "proc/self/environ": f"HOME={HOME}\0",
    "proc/sys/kernel/hostname": HOST,
    "etc/hostname": HOST,
    f"var/spool/pbs/aux/{JOB}.{HOST}": f"{HOST}\n{HOST}\n{OTHER_HOST}\n",
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
LINKS = {
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
    files = FILES | {"proc/self/cgroup": line}
    build_host(root, files | {f"{folder}/{name}": limit for name, limit in limits.items()}, LINKS)
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


UUIDS = tuple(
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


GPUS = tuple(f"GPU-{uuid}" for uuid in UUIDS)
PREFIXES = [gpu[:length] for gpu in GPUS for length in (4, 6, 8, 9, 20, 40)]
entries = st.sampled_from(
    [
        *PREFIXES,
        *[prefix.upper() for prefix in PREFIXES],
        *[f"GPU-{uuid.upper()}" for uuid in UUIDS],
        *[f" {gpu}" for gpu in GPUS],
        *[f"{gpu}{after}" for gpu in GPUS for after in (" ", "zz", "\t")],
        *[gpu.lower() for gpu in GPUS],
        *[f"{number}{gpu}" for number, gpu in enumerate(GPUS)],
        *[f"MIG-{uuid}" for uuid in UUIDS],
        *[f"MIG-{gpu}/1/0" for gpu in GPUS],
        *("", "0", " 1", "2", "-1", "9", "none", "0x1", "MIG-", "GPU-zzz"),
    ]
)


@given(st.lists(entries, min_size=1, max_size=4).map(",".join))
def test_what_cuda_sees_survives_and_no_uuid_does(visible: str) -> None:
    hashed = tuple(map(hash_uuids, GPUS))
    scrubbed = scrub_visible(visible, GPUS)
    assert select(visible, GPUS) == select(scrubbed, hashed)
    assert [] == [uuid for uuid in UUIDS if uuid[:6].lower() in scrubbed.lower()]


@pytest.mark.parametrize("visible", ["", "0", "2,1", "-1", " 1 , 0", "NoDevFiles"])
def test_numbers_stay_as_they_were_said(visible: str) -> None:
    assert visible == scrub_visible(visible, GPUS)


@pytest.mark.parametrize("uuid", ["MIG-GPU-{}/3/0", "MIG-{}"])
def test_a_slice_is_still_selected_by_its_uuid(uuid: str) -> None:
    known = tuple(uuid.format(each) for each in UUIDS)
    scrubbed = scrub_visible(known[1], known)
    assert [1] == select(scrubbed, tuple(map(hash_uuids, known)))
    assert UUIDS[1] not in scrubbed


def test_equal_uuids_are_hashed_equal_in_any_case_and_others_apart() -> None:
    hashed = [hash_uuids(gpu) for gpu in GPUS]
    assert 3 == len({*hashed, *GPUS} - {*GPUS})
    assert hashed == [f"GPU-{hash_uuids(uuid.upper())}" for uuid in UUIDS]


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
