import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from fake_host import ANSWERING, build_host
from machines.record import scrub_files
from recorded import FileAnswers, RecordedFiles

from zerowiz.core.machine.types import UNLIMITED_BYTES, Accelerator, Host, JobAllocation, LinkClass
from zerowiz.errors import UsageError
from zerowiz.probe.files import Files, Space, hash_uuids
from zerowiz.probe.machine.host import (
    cpu_machine,
    parse_cgroup_paths,
    parse_flags,
    parse_limit,
    parse_list,
    parse_meminfo,
    parse_memlock,
    parse_quota,
    read_host,
    with_number_formats,
)

# Which 16-bit formats a CPU computes, read from what its kernel shows.

# /proc/cpuinfo of one core each, without the lines that nobody reads. AMD's of 2021 (Zen 3) and of
# 2024 (Zen 5), Intel's of 2023 (Sapphire Rapids), Arm's Neoverse N1 and V1, IBM's POWER9.
ZEN3 = """\
processor	: 0
vendor_id	: AuthenticAMD
model name	: AMD EPYC 7763 64-Core Processor
flags		: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc rep_good nopl cpuid extd_apicid pni pclmulqdq ssse3 fma cx16 pcid sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand hypervisor lahf_lm cmp_legacy svm cr8_legacy abm sse4a misalignsse 3dnowprefetch osvw topoext fsgsbase bmi1 avx2 smep bmi2 invpcid rdseed adx smap clflushopt clwb sha_ni xsaveopt xsavec xgetbv1 xsaves clzero xsaveerptr arat umip vaes vpclmulqdq rdpid fsrm
bugs		: sysret_ss_attrs null_seg spectre_v1 spectre_v2
"""
ZEN5 = """\
processor	: 0
vendor_id	: AuthenticAMD
model name	: AMD EPYC
flags		: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 syscall nx lm pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 avx f16c bmi1 avx2 bmi2 avx512f avx512dq adx avx512ifma avx512cd avx512bw avx512vl avx_vnni avx512_bf16 avx512vbmi avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq avx512_vp2intersect
"""
SAPPHIRE_RAPIDS = """\
processor	: 0
vendor_id	: GenuineIntel
model name	: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags		: fpu vme de pse sse sse2 lm avx f16c avx2 avx512f avx512dq avx512cd avx512bw avx512vl avx_vnni avx512_bf16 avx512vbmi avx512_vnni amx_bf16 avx512_fp16 amx_tile amx_int8
"""
NEOVERSE_N1 = """\
processor	: 0
BogoMIPS	: 243.75
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer	: 0x41
"""
NEOVERSE_V1 = """\
processor	: 0
BogoMIPS	: 2100.00
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng
CPU implementer	: 0x41
"""
POWER9 = """\
processor	: 0
cpu		: POWER9, altivec supported
clock		: 3800.000000MHz
"""


def formats(root: Path, cpuinfo: str | None, environ: Mapping[str, str]) -> tuple[object, object]:
    files = build_host(root, {} if cpuinfo is None else {"proc/cpuinfo": cpuinfo})
    host = with_number_formats(Host(cores=2), files, environ)
    assert 2 == host.cores
    return host.computes_bf16, host.computes_fp16


@pytest.mark.parametrize(
    ("cpuinfo", "bf16", "fp16"),
    [
        (ZEN3, False, False),
        (ZEN5, True, False),
        (SAPPHIRE_RAPIDS, True, True),
        (NEOVERSE_N1, False, None),
        (NEOVERSE_V1, True, None),
        (POWER9, None, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_the_flags_tell_which_formats_a_cpu_computes(
    tmp_path: Path, cpuinfo: str | None, bf16: bool | None, fp16: bool | None
) -> None:
    assert (bf16, fp16) == formats(tmp_path, cpuinfo, {})


@pytest.mark.parametrize(
    ("cpuinfo", "environ", "bf16", "fp16"),
    [
        (ZEN3, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, False, False),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, False, False),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "avx2"}, False, False),
        (SAPPHIRE_RAPIDS, {"DNNL_MAX_CPU_ISA": "AVX2"}, False, False),
        (
            SAPPHIRE_RAPIDS,
            {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX", "DNNL_MAX_CPU_ISA": "AVX2"},
            True,
            True,
        ),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, False, False),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI_2"}, False, True),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, True, False),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, True, True),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "nonsense"}, True, True),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": ""}, True, True),
        (SAPPHIRE_RAPIDS, {"ATEN_CPU_CAPABILITY": "avx2"}, True, True),
    ],
)
def test_what_holds_onednn_to_older_instructions_takes_formats_away(
    tmp_path: Path, cpuinfo: str, environ: dict[str, str], bf16: bool, fp16: bool
) -> None:
    assert (bf16, fp16) == formats(tmp_path, cpuinfo, environ)


MEMINFO = """\
MemTotal:       16384256 kB
MemFree:         1203004 kB
MemAvailable:   12000000 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
"""
TOTAL_BYTES, AVAILABLE_BYTES = 16384256 * 1024, 12000000 * 1024

# Of a Linux 6.8 host, without the blanks at the ends of its lines.
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            20000                20000                files
Max locked memory         {soft:<20} unlimited            bytes
Max address space         unlimited            unlimited            bytes
"""

STATUS = """\
Name:	python
Cpus_allowed:	ffff
Cpus_allowed_list:	{cores}
Mems_allowed_list:	0-1
"""

GIB = 2**30
UNLIMITED_V1 = "9223372036854771712\n"


def build(root: Path, cgroup: str, files: dict[str, str | int]) -> Host:
    """A host of this memory, with these files under /sys/fs/cgroup."""
    proc = {"proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup}
    bounds = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    return read_host(build_host(root, proc | bounds))


def read_recorded(text: dict[str, str]) -> Host:
    return read_host(RecordedFiles(answers=FileAnswers(text={"proc/meminfo": MEMINFO, **text})))


def test_meminfo_is_read_in_bytes() -> None:
    sizes = parse_meminfo(MEMINFO)
    assert (TOTAL_BYTES, AVAILABLE_BYTES) == (sizes["MemTotal"], sizes["MemAvailable"])
    assert "HugePages_Total" not in sizes


def test_a_host_that_answers_nothing_is_unknown() -> None:
    assert Host() == read_host(RecordedFiles(answers=FileAnswers()))


def test_each_fact_of_a_host_is_read_from_some_file() -> None:
    files = RecordedFiles(answers=ANSWERING)
    host = with_number_formats(read_host(files), files, {})
    unread = [name for name in Host.__struct_fields__ if getattr(host, name) is None]
    # That is timed, and in no file.
    assert ["python_call_seconds"] == unread


def test_a_recording_keeps_each_fact_of_a_host() -> None:
    recorded = RecordedFiles(answers=scrub_files(ANSWERING))
    assert read_host(RecordedFiles(answers=ANSWERING)) == read_host(recorded)


def test_this_host_can_be_read() -> None:
    host = read_host(Files())
    assert host.total_bytes
    assert host.available_bytes is not None
    assert host.available_bytes <= host.total_bytes
    assert host.available_by
    assert host.cores


V2, V1 = "cgroup v2", "cgroup v1"


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        (
            "0::/user.slice",
            {"user.slice/memory.max": "max", "user.slice/memory.current": GIB},
            (AVAILABLE_BYTES, "MemAvailable"),
        ),
        ("0::/job", {"job/memory.max": 8 * GIB, "job/memory.current": 3 * GIB}, (5 * GIB, V2)),
        (
            "0::/slurm/job_7/step_0",
            {
                "memory.max": 9 * GIB,
                "memory.current": GIB,
                "slurm/memory.max": 6 * GIB,
                "slurm/memory.current": 4 * GIB,
                "slurm/job_7/memory.max": 5 * GIB,
                "slurm/job_7/memory.current": GIB,
            },
            (2 * GIB, V2),
        ),
        (
            "0::/job",
            {"job/memory.max": 900 * GIB, "job/memory.current": 0},
            (AVAILABLE_BYTES, "MemAvailable"),
        ),
        ("0::/job", {"job/memory.max": GIB, "job/memory.current": 2 * GIB}, (0, V2)),
        ("0::/job", {"job/memory.max": 5 * GIB}, (5 * GIB, V2)),
        (
            "0::/job",
            {
                "job/memory.max": 8 * GIB,
                "job/memory.current": GIB,
                "job/memory.stat": f"inactive_file {2 * GIB}",
            },
            (8 * GIB, V2),
        ),
        (
            "0::/job",
            {
                "job/memory.max": 8 * GIB,
                "job/memory.current": 7 * GIB,
                "job/memory.stat": f"anon {GIB}\nactive_file 5\ninactive_file {4 * GIB}",
            },
            (5 * GIB, V2),
        ),
        *(
            (f"0::{path}", {"memory.max": 4 * GIB, "memory.current": GIB}, (3 * GIB, V2))
            for path in ("/", "/docker/0123", "/../../other")
        ),
        (
            "0::/../stranger",
            {
                "memory.max": 4 * GIB,
                "memory.current": GIB,
                "../stranger/memory.max": GIB,
                "../stranger/memory.current": GIB,
            },
            (3 * GIB, V2),
        ),
        (
            "12:cpu,cpuacct:/a\n5:memory:/docker/0123\n0::/unified",
            {
                "memory/memory.limit_in_bytes": UNLIMITED_V1,
                "memory/memory.usage_in_bytes": GIB,
                "memory/docker/0123/memory.limit_in_bytes": 8 * GIB,
                "memory/docker/0123/memory.usage_in_bytes": 6 * GIB,
                "memory/docker/0123/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}",
            },
            (3 * GIB, V1),
        ),
    ],
    ids=[
        "no limit",
        "its limit less what it uses",
        "the tightest of its parents",
        "a limit above the host's memory",
        "beyond its limit",
        "its use is not told",
        "more cache than use",
        "file cache that the kernel would drop",
        "a container that sees its own as the root",
        "a container by its name on the host",
        "a container by a path out of its namespace",
        "a path that climbs out is not followed",
        "v1",
    ],
)
def test_a_cgroup_and_its_parents_bound_what_is_available(
    tmp_path: Path, cgroup: str, files: dict[str, str | int], expected: tuple[int, str]
) -> None:
    host = build(tmp_path, f"{cgroup}\n", files)
    assert TOTAL_BYTES == host.total_bytes
    assert expected == (host.available_bytes, host.available_by)


def test_a_cgroup_path_is_read_by_its_controller() -> None:
    text = "12:cpu,cpuacct:/slurm:1\n1:name=systemd:/init\n0::/user.slice\nrubbish\n"
    paths = parse_cgroup_paths(text)
    assert ("/slurm:1", "/slurm:1", "/user.slice") == (paths["cpu"], paths["cpuacct"], paths[""])
    assert "memory" not in paths


TEXTS: dict[Callable[[str], object], dict[str, object]] = {
    parse_limit: {"max\n": None, UNLIMITED_V1: None, "": None, "0\n": 0, "1024\n": 1024},
    parse_list: {"0-3,8\n": {0, 1, 2, 3, 8}, "5": {5}, "\n": set(), "0-3,x": set(), "0x1": set()},
    # Whole cores, and at least one.
    parse_quota: {
        "max 100000\n": None,
        "-1 100000": None,
        "50000 100000\n": 1,
        "399999 100000": 3,
        "100000 0": None,
        "": None,
    },
    # The soft limit of locked memory.
    parse_memlock: {
        LIMITS.format(soft="8388608"): 8388608,
        LIMITS.format(soft="unlimited"): UNLIMITED_BYTES,
        "": None,
    },
    # Only of a line of flags.
    parse_flags: {"vmx flags\t: bf16\nmodel name\t: bf16 flags : bf16\n": frozenset()},
}


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [(parse, text, expected) for parse, texts in TEXTS.items() for text, expected in texts.items()],
)
def test_a_text_of_the_kernel_is_a_value_or_nothing(
    parse: Callable[[str], object], text: str, expected: object
) -> None:
    assert expected == parse(text)


@pytest.mark.parametrize(
    ("given_bytes", "expected"),
    [
        (GIB, (GIB, "SLURM")),
        (900 * GIB, (AVAILABLE_BYTES, "MemAvailable")),
        (None, (AVAILABLE_BYTES, "MemAvailable")),
    ],
)
def test_a_scheduler_bounds_what_it_gave(
    given_bytes: int | None, expected: tuple[int, str]
) -> None:
    files = RecordedFiles(answers=FileAnswers(text={"proc/meminfo": MEMINFO}))
    host = read_host(files, JobAllocation(scheduler="SLURM", memory_bytes=given_bytes))
    assert expected == (host.available_bytes, host.available_by)


def test_no_more_is_available_than_there_is() -> None:
    """A container whose /proc/meminfo is made up (lxcfs) may say so."""
    text: dict[str, str | None] = {"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 1001 kB\n"}
    host = read_host(RecordedFiles(answers=FileAnswers(text=text)))
    assert 1000 * 1024 == host.total_bytes == host.available_bytes


def test_a_bound_alone_does_not_tell_what_is_available() -> None:
    host = read_host(
        RecordedFiles(answers=FileAnswers()), JobAllocation(scheduler="SLURM", memory_bytes=GIB)
    )
    assert (None, None) == (host.available_bytes, host.available_by)


# The form is drivers/base/node.c, node_read_meminfo; the sizes are those of a GH200 with 480 GB
# for its cores and 96 GB of HBM, whose driver has put the HBM on line as node 1.
NODE_MEMINFO = """\
Node {node} MemTotal:       {total} kB
Node {node} MemFree:        {free} kB
Node {node} MemUsed:         2053744 kB
Node {node} Active(file):   1000 kB
Node {node} Inactive(file): 2000 kB
Node {node} FilePages:      9999 kB
Node {node} SReclaimable:   500 kB
Node {node} HugePages_Total:     0
"""
GRACE = {
    "proc/meminfo": "MemTotal:       600000000 kB\nMemAvailable:   560000000 kB\n",
    "sys/devices/system/node/has_cpu": "0\n",
    "sys/devices/system/node/has_memory": "0-1\n",
    "sys/devices/system/node/node0/meminfo": NODE_MEMINFO.format(
        node=0, total=500000000, free=463500000
    ),
    "sys/devices/system/node/node1/meminfo": NODE_MEMINFO.format(
        node=1, total=100000000, free=96500000
    ),
}


def test_the_memory_of_a_grace_gpu_is_no_memory_of_the_host() -> None:
    host = read_recorded(GRACE)
    assert 500_000_000 * 1024 == host.total_bytes
    assert (560_000_000 - 96_500_000 - 1000 - 2000 - 500) * 1024 == host.available_bytes
    assert 1 == host.numa_nodes


def test_no_memory_is_taken_off_when_it_is_not_known_where_the_cores_are() -> None:
    without = {path: text for path, text in GRACE.items() if not path.endswith("has_cpu")}
    host = read_recorded(without)
    assert (600_000_000 * 1024, None) == (host.total_bytes, host.numa_nodes)


def test_every_node_with_cores_counts() -> None:
    nodes = {
        "sys/devices/system/node/has_cpu": "0-1\n",
        "sys/devices/system/node/has_memory": "0-1\n",
    }
    host = read_recorded(nodes)
    assert (2, TOTAL_BYTES) == (host.numa_nodes, host.total_bytes)


def test_cores_are_those_of_the_affinity_that_are_online() -> None:
    status = {"proc/self/status": STATUS.format(cores="0-127")}
    assert 128 == read_recorded(status).cores
    assert 16 == read_recorded(status | {"sys/devices/system/cpu/online": "0-15\n"}).cores


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/pod/container\n",
                "sys/fs/cgroup/pod/cpu.max": "650000 100000\n",
                "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
            },
            6,
            id="of any level",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/0123\n4:memory:/other\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/docker/0123/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/docker/0123/cpu.cfs_period_us": "100000\n",
            },
            2,
            id="v1",
        ),
    ],
)
def test_a_quota_of_a_cgroup_bounds_the_cores(
    tmp_path: Path, files: dict[str, str | int], cores: int
) -> None:
    status = {"proc/self/status": STATUS.format(cores="0-15")}
    assert cores == read_host(build_host(tmp_path, status | files)).cores


def test_shared_memory_is_the_size_of_its_file_system() -> None:
    space = Space(total_bytes=64 * 2**20, free_bytes=0)
    host = read_host(RecordedFiles(answers=FileAnswers(space={"dev/shm": space})))
    assert 64 * 2**20 == host.shm_bytes


def test_cpu_ranks_share_the_host() -> None:
    machine = cpu_machine(3, Host(total_bytes=300, available_bytes=200))
    assert [(0, 100, 66), (1, 100, 66), (2, 100, 66)] == [
        (gpu.index, gpu.total_bytes, gpu.free_bytes) for gpu in machine.gpus
    ]
    assert Accelerator.CPU is machine.accelerator
    assert LinkClass.UNKNOWN is machine.interconnect.link_class


def test_an_unknown_host_gives_cpu_ranks_an_unknown_share() -> None:
    machine = cpu_machine(2, Host())
    assert (None, None) == (machine.total_bytes, machine.free_bytes)


def test_a_cpu_job_without_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one rank, not 0"):
        cpu_machine(0, Host())


# The files of a host answer without an error, whatever they are.

HOST_FILES = {
    "proc/meminfo": "MemTotal: 1 kB\n",
    "sys/block/a/size": "8\n",
    "sys/block/b/size": "9\n",
}
HOST_LINKS = {"sys/class/block/a": "sys/block/a"}


@pytest.fixture
def host(tmp_path: Path) -> Files:
    return build_host(tmp_path, HOST_FILES, HOST_LINKS)


@pytest.mark.parametrize(
    ("path", "text", "names", "real"),
    [
        ("proc/meminfo", "MemTotal: 1 kB\n", (), "proc/meminfo"),
        ("sys/class/block/a/size", "8\n", (), "sys/block/a/size"),
        ("sys/class/block/a", None, ("size",), "sys/block/a"),
        ("sys/block", None, ("a", "b"), "sys/block"),
        ("not/there", None, (), None),
        ("loop", None, (), None),
    ],
)
def test_a_path_of_a_host_is_a_text_or_names_or_nothing(
    host: Files,
    path: str,
    text: str | None,
    names: tuple[str, ...],
    real: str | None,
) -> None:
    (host.root / "loop").symlink_to("loop")
    assert (text, names, real) == (host.text(path), host.names(path), host.real(path))
    assert (real is not None) is host.opens(path)


def test_bytes_that_are_no_text_are_replaced(host: Files) -> None:
    (host.root / "binary").write_bytes(b"a\xffb")
    assert "a\ufffdb" == host.text("binary")


@pytest.mark.parametrize("what", ["pipe", "device"])
def test_what_never_ends_is_no_text(host: Files, what: str) -> None:
    """A variable names the file with the hosts of a job, and may name anything."""
    if what == "pipe":
        os.mkfifo(host.root / what)
    else:
        (host.root / what).symlink_to("/dev/zero")
    assert host.text(what) is None


def test_a_link_out_of_the_root_leads_nowhere(host: Files) -> None:
    (host.root / "out").symlink_to("/")
    assert host.real("out") is None


def test_equal_uuids_are_hashed_equal_in_any_case_and_others_apart() -> None:
    gpus = [
        "GPU-59d69932-6ed4-29e9-5fe5-716d097ac8af",
        "GPU-1c530341-f7bb-056d-1d9f-edd563bdac03",
    ]
    hashed = [hash_uuids(gpu) for gpu in gpus]
    assert 2 == len({*hashed, *gpus} - {*gpus})
    assert hashed == [f"GPU-{hash_uuids(gpu.removeprefix('GPU-').upper())}" for gpu in gpus]
