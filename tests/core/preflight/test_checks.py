"""What would end a job: each check on a case that has it, one that has not, and an unknown."""

from collections.abc import Mapping
from typing import Any

import pytest
from core.preflight.cases import (
    CASES,
    CPU,
    CUDA13,
    GIB,
    H200,
    INFINIBAND,
    PLAIN,
    SEVEN,
    TOOLS,
    Case,
    bad_release,
    install,
    lock,
    locked,
    plan,
    resuming,
    resuming_from,
    saved_at,
    two_nodes,
    with_capability,
    with_host,
)
from recorded import play, recording

from zerowiz.core.findings import (
    BadRelease,
    Finding,
    Severity,
    errors_of,
    size,
)
from zerowiz.core.machine.types import UNLIMITED_BYTES, Machine
from zerowiz.core.memory.host import HostUse, Saving
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.preflight.builds import COMPILES
from zerowiz.core.preflight.environment import NO_CHECKPOINT, OTHER_RANKS, OTHER_STAGE
from zerowiz.core.preflight.examine import RULES, encode_findings, examine
from zerowiz.core.preflight.facts import (
    ASYNC_IO,
    CPU_ADAM,
    FUSED_ADAM,
    PIN_MEMORY,
    Extensions,
    Folder,
    Import,
    Installed,
    Lock,
    Op,
    PlannedJob,
    PreflightFacts,
    PreflightInput,
    Script,
    SourceFolder,
    Toolchain,
    Torch,
)
from zerowiz.core.preflight.hardware import checkpoint_bytes
from zerowiz.core.script.facts import Convention, ScriptFacts
from zerowiz.core.strategies import DDP, STRATEGIES, ZERO1, ZERO2, ZERO3, ZERO3_OFFLOAD
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration, Method, Precision, Workload
from zerowiz.errors import page_of
from zerowiz.probe.host_files import HostFiles
from zerowiz.probe.package_data import read_bad_releases
from zerowiz.probe.preflight.read_facts import read_facts


def codes(
    machine: Machine | None = H200,
    facts: PreflightFacts | None = None,
    planned: PlannedJob | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[str]:
    return [each.rule.name for each in look(machine, facts, planned, environ)]


def look(
    machine: Machine | None = H200,
    facts: PreflightFacts | None = None,
    planned: PlannedJob | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    return examine(
        PreflightInput(
            machine=machine, planned=planned, facts=facts or PreflightFacts(), environ=environ or {}
        )
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_check_finds_its_case_and_not_what_is_nearly_one(case: Case) -> None:
    found = [each for each in examine(case.found) if each.rule.name == case.rule]
    assert {each.rule.severity for each in found} == {each.severity for each in found} != set()
    assert case.rule not in {each.rule.name for each in examine(case.near)}


def test_every_rule_of_a_check_has_a_case() -> None:
    by_earlier_steps = {"script-refused", "plan-refused", "no-plan", "no-deepspeed", "no-machine"}
    assert {rule.name for rule in RULES} - by_earlier_steps == {case.rule for case in CASES}
    assert len(RULES) == len({rule.code for rule in RULES}) == len({rule.name for rule in RULES})


@pytest.mark.parametrize("machine", [H200, CPU, None])
def test_where_nothing_is_known_nothing_is_found(machine: Machine | None) -> None:
    assert [] == codes(machine)
    planned = None if machine is None else plan(machine, ZERO2, CPU_ADAM, FUSED_ADAM, ASYNC_IO)
    assert [] == codes(machine, planned=planned)


def test_where_all_is_as_it_should_be_nothing_is_found() -> None:
    facts = PreflightFacts(
        installed=install(deepspeed="0.19.8"),
        toolchain=TOOLS,
        extensions=Extensions(
            folder="/ext",
            writable=True,
            file_system="ext4",
            built=frozenset({"cpu_adam", "fused_adam"}),
        ),
        shm_free_bytes=64 * GIB,
        checkpoints=Folder(path="out", free_bytes=2**50),
    )
    assert [] == codes(H200, facts, plan(H200, ZERO2, CPU_ADAM, FUSED_ADAM))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"failure": "does not exist"}, "no-interpreter: error"),
        ({"failure": "does not answer within 20 s", "is_slow": True}, "no-interpreter: warning"),
        ({"own": False}, "other-environment: warning"),
        ({"own": True}, None),
        ({"interpreter": None}, None),
    ],
)
def test_the_python_of_the_ranks_must_start_and_is_best_that_of_zerowiz(
    fields: dict[str, Any], expected: str | None
) -> None:
    program = Installed(**{"program": "/x/deepspeed", "interpreter": "/x/python", **fields})
    found = [f"{f.rule.name}: {f.severity}" for f in look(facts=PreflightFacts(installed=program))]
    assert ([] if expected is None else [expected]) == found


@pytest.mark.parametrize(
    ("name", "planned"),
    [
        ("torch", None),
        ("deepspeed", None),
        ("transformers", plan(integration=Integration.HF)),
        ("accelerate", plan(integration=Integration.HF)),
        ("accelerate", plan(integration=Integration.ACCELERATE)),
        ("peft", replace(plan(), uses_peft=True)),
        ("bitsandbytes", replace(plan(), uses_bitsandbytes=True)),
        ("setuptools", plan(H200, ZERO2, CPU_ADAM)),
    ],
)
def test_a_library_that_the_job_needs_and_is_not_there_ends_it(
    name: str, planned: PlannedJob | None
) -> None:
    lacking = PreflightFacts(installed=install(lacks=name))
    (finding,) = errors_of(look(H200, lacking, planned))
    assert f"`{name}` is not installed" in finding.message
    unknown = PreflightFacts(installed=replace(install(), modules=None))
    assert [] == codes(H200, unknown, planned)
    if planned is not None:
        assert [] == codes(H200, lacking, plan())


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.18.2", ["old-deepspeed"]),
        ("0.19.7+cu13", ["old-deepspeed"]),
        ("0.19.8", []),
        ("0.20.0", []),
        ("1.0.0", []),
        ("odd", []),
        (None, []),
    ],
)
def test_an_old_deepspeed_is_a_warning(version: str | None, expected: list[str]) -> None:
    facts = PreflightFacts(installed=install(deepspeed=version))
    assert expected == codes(facts=facts)
    assert () == errors_of(look(facts=facts))


def test_what_the_templates_bring_is_copied_and_not_installed() -> None:
    script = Script(path="train.py", imports=(Import(name="portable_checkpoint", line=2),))
    (finding,) = errors_of(look(facts=PreflightFacts(installed=install(), script=script)))
    assert "templates/portable_checkpoint" in finding.fixes[0]


@pytest.mark.parametrize(
    ("module", "package"), [("sklearn", "scikit-learn"), ("my_data", "my_data")]
)
def test_a_module_that_is_missing_is_installed_by_the_name_of_its_package(
    module: str, package: str
) -> None:
    script = Script(path="train.py", imports=(Import(name=module, line=2),))
    (finding,) = errors_of(look(facts=PreflightFacts(installed=install(), script=script)))
    assert finding.fixes[0].endswith(f" install {package}")


@pytest.mark.parametrize(
    ("source", "fix"),
    [
        (SourceFolder(path="src", project="."), "-m pip install -e ."),
        (SourceFolder(path="../src", project=".."), "-m pip install -e .."),
        (SourceFolder(path="my code"), "export PYTHONPATH='my code'"),
    ],
)
def test_a_package_of_the_scripts_own_repository_is_not_fetched_by_its_name(
    source: SourceFolder, fix: str
) -> None:
    """PyPI has another `fastchat`, and another `alignment`."""
    own = Import(name="fastchat", line=2, source=source)
    script = Script(path="fastchat/train/train.py", imports=(own,))
    (finding,) = errors_of(look(facts=PreflightFacts(installed=install(), script=script)))
    assert finding.fixes[0].endswith(fix)


@pytest.mark.parametrize(
    ("torch", "machine", "expected"),
    [
        (Torch(version="2.13.0+cpu"), H200, ["torch-without-cuda"]),
        (Torch(version="2.13.0+rocm7", hip=True), H200, ["torch-without-cuda"]),
        (Torch(version="2.13.0+cpu"), CPU, []),
        (None, H200, []),
    ],
)
def test_gpus_need_a_torch_with_cuda(
    torch: Torch | None, machine: Machine, expected: list[str]
) -> None:
    assert expected == codes(machine, PreflightFacts(installed=install(torch)))


@pytest.mark.parametrize(
    ("built", "driver", "expected"),
    [
        ((13, 0), (12, 8), ["old-driver"]),
        ((12, 8), (12, 2), []),
        ((12, 8), (13, 0), []),
        ((11, 8), (12, 0), []),
        ((12, 1), (11, 8), ["old-driver"]),
        ((10, 2), (10, 1), ["old-driver"]),
        ((10, 1), (10, 2), []),
        ((13, 0), None, []),
    ],
)
def test_a_driver_runs_its_own_major_version_of_cuda_and_older_ones(
    built: tuple[int, int], driver: tuple[int, int] | None, expected: list[str]
) -> None:
    torch = Torch(version="2.13.0", cuda_version=built)
    machine = replace(H200, cuda_version=driver)
    assert expected == codes(machine, PreflightFacts(installed=install(torch)))


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 0), 4), ((7, 5), 0), ((8, 9), 0), ((12, 1), 0), ((13, 0), 0), (None, 0)],
)
def test_a_gpu_older_than_all_code_of_torch_runs_none_of_it(
    capability: tuple[int, int] | None, expected: int
) -> None:
    found = codes(with_capability(capability), PreflightFacts(installed=install()))
    assert expected * ["no-code-for-gpu"] == found


def test_a_torch_of_somebodys_own_build_is_not_judged_by_its_gpus() -> None:
    own = replace(CUDA13, capabilities=None)
    assert [] == codes(with_capability((7, 0)), PreflightFacts(installed=install(own)))


@pytest.mark.parametrize(
    ("precision", "capability", "environ", "expected"),
    [
        (Precision.FP16, (7, 0), {}, []),
        (Precision.FP16, (6, 1), {}, ["half-precision"] * 4),
        (Precision.FP16, (6, 1), {"DS_ALLOW_DEPRECATED_FP16": "1"}, []),
        (Precision.FP16, (5, 2), {"DS_ALLOW_DEPRECATED_FP16": "1"}, ["half-precision"] * 4),
        (Precision.FP16, None, {}, []),
        (Precision.BF16, (7, 5), {}, ["slow-by-choice"]),
        (Precision.BF16, (8, 0), {}, []),
        (Precision.BF16, None, {}, []),
        (Precision.FP32, (5, 2), {}, []),
    ],
)
def test_a_number_format_is_held_against_the_gpu(
    precision: Precision,
    capability: tuple[int, int] | None,
    environ: dict[str, str],
    expected: list[str],
) -> None:
    machine = with_capability(capability)
    planned = plan(machine, workload=Workload(precision=precision))
    assert expected == codes(machine, planned=planned, environ=environ)


@pytest.mark.parametrize(
    ("workload", "computes", "expected"),
    [
        (Workload(precision=Precision.FP16), False, ["half-precision"]),
        (Workload(precision=Precision.FP16), True, []),
        (Workload(precision=Precision.FP16), None, []),
        (Workload(precision=Precision.BF16), False, ["slow-by-choice"]),
        (Workload(precision=Precision.BF16), True, []),
        (Workload(precision=Precision.BF16), None, []),
        (
            Workload(precision=Precision.FP32, torch_autocast=Precision.BF16),
            False,
            ["slow-by-choice"],
        ),
        (Workload(precision=Precision.FP32), False, []),
    ],
)
def test_a_number_format_is_held_against_the_cpu(
    workload: Workload, computes: bool | None, expected: list[str]
) -> None:
    host = replace(CPU.host, computes_bf16=computes, computes_fp16=computes)
    machine = replace(CPU, host=host)
    assert expected == codes(machine, planned=plan(machine, workload=workload))


def built_with(tools: Toolchain, *ops: Op, built: tuple[str, ...] = ()) -> list[str]:
    extensions = Extensions(folder="/ext", writable=True, built=frozenset(built))
    facts = PreflightFacts(installed=install(), toolchain=tools, extensions=extensions)
    seen = look(H200, facts, plan(H200, ZERO2, *ops))
    return [f"{f.rule.name}: {f.severity}" for f in seen if f.rule != COMPILES]


@pytest.mark.parametrize(
    ("tools", "op", "fresh", "built"),
    [
        (replace(TOOLS, has_compiler=False), CPU_ADAM, ["no-compiler: error"], []),
        (replace(TOOLS, has_ninja=False), CPU_ADAM, ["no-ninja: error"], ["no-ninja: error"]),
        (replace(TOOLS, cuda_home=None, has_nvcc=False), CPU_ADAM, [], []),
        (
            replace(TOOLS, cuda_home=None, has_nvcc=False),
            FUSED_ADAM,
            ["no-cuda-toolkit: error"],
            [],
        ),
        (replace(TOOLS, has_nvcc=False), ASYNC_IO, ["no-cuda-toolkit: error"], []),
        (
            replace(TOOLS, cuda_version=(12, 8)),
            FUSED_ADAM,
            ["other-cuda-toolkit: warning"],
            ["other-cuda-toolkit: warning"],
        ),
        (replace(TOOLS, cuda_version=(13, 2)), FUSED_ADAM, [], []),
        (replace(TOOLS, cuda_version=None), FUSED_ADAM, [], []),
        (replace(TOOLS, cuda_version=(12, 8)), CPU_ADAM, [], []),
        (replace(TOOLS, has_libaio=False), ASYNC_IO, ["no-libaio: error"], ["no-libaio: error"]),
        (replace(TOOLS, has_libaio=None), ASYNC_IO, [], []),
        (replace(TOOLS, has_libaio=False), PIN_MEMORY, [], []),
    ],
)
def test_what_an_op_is_built_with_must_be_there(
    tools: Toolchain, op: Op, fresh: list[str], built: list[str]
) -> None:
    assert fresh == built_with(tools, op)
    assert built == built_with(tools, op, built=(op.name,))
    assert [] == built_with(tools)


def test_what_an_op_misses_that_is_only_likely_is_a_warning() -> None:
    likely, bare = replace(CPU_ADAM, likely=True), replace(TOOLS, has_ninja=False, has_libaio=False)
    assert ["no-ninja: warning"] == built_with(bare, likely)
    assert ["no-ninja: error", "no-libaio: error"] == built_with(bare, likely, ASYNC_IO)


def test_an_op_that_came_with_deepspeed_needs_nothing() -> None:
    bare = replace(TOOLS, has_compiler=False, has_ninja=False, has_nvcc=False)
    installed = replace(install(), prebuilt=frozenset({"fused_adam"}))
    facts = PreflightFacts(installed=installed, toolchain=bare)
    assert [] == codes(H200, facts, plan(H200, ZERO2, FUSED_ADAM))


def test_ranks_on_the_cpu_need_no_nvcc() -> None:
    facts = PreflightFacts(installed=install(), toolchain=replace(TOOLS, has_nvcc=False))
    assert [] == codes(CPU, facts, plan(CPU, ZERO2, FUSED_ADAM))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9.0a", ["arch-list"]),
        ("8.0;Hopper", ["arch-list"]),
        ("8.0,9.0", ["arch-list"]),
        ("90", ["arch-list"]),
        ("9.0", []),
        ("9.0+PTX", []),
        ("8.0 9.0", []),
        ("8.0;9.0;", []),
        (" ", []),
    ],
)
def test_the_arch_list_must_be_one_that_deepspeed_reads(text: str, expected: list[str]) -> None:
    facts = PreflightFacts(installed=install(), toolchain=TOOLS)
    environ = {"TORCH_CUDA_ARCH_LIST": text}
    assert expected == codes(H200, facts, plan(H200, ZERO2, FUSED_ADAM), environ)
    assert [] == codes(H200, facts, plan(H200, ZERO2, CPU_ADAM), environ)


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        (Extensions(folder="/e", writable=False), ["extensions-folder: error"]),
        (Extensions(folder="/e", writable=None), []),
        (Extensions(folder="/e", file_system="nfs4"), ["extensions-on-network: info"]),
        (Extensions(folder="/e", file_system="ext4"), []),
        (Extensions(folder="/e", file_system="nfs", built=frozenset({"cpu_adam"})), []),
    ],
)
def test_the_folder_of_ops_must_take_them(extensions: Extensions, expected: list[str]) -> None:
    facts = PreflightFacts(installed=install(), extensions=extensions)
    seen = look(H200, facts, plan(H200, ZERO2, CPU_ADAM))
    seen = tuple(finding for finding in seen if finding.rule != COMPILES)
    assert expected == [f"{f.rule.name}: {f.severity}" for f in seen]
    assert [] == codes(H200, facts, plan())


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        (locked(lock(holder_pid=7, sees_all=True)), Severity.INFO),
        (locked(lock(sees_all=True)), Severity.ERROR),
        # A process of another user, of another container, or of another host may have it open.
        (locked(lock()), Severity.WARNING),
        (locked(lock("gds", sees_all=True)), None),
    ],
)
def test_a_lock_ends_a_launch_where_nobody_can_have_it_open(
    extensions: Extensions, expected: Severity | None
) -> None:
    seen = look(H200, PreflightFacts(extensions=extensions), plan(H200, ZERO2, CPU_ADAM))
    assert [expected] * (expected is not None) == [finding.severity for finding in seen]


@pytest.mark.parametrize(("age_milliseconds", "may_build"), [(9_000, True), (900_000, False)])
def test_only_a_young_lock_may_be_of_a_build(age_milliseconds: int, may_build: bool) -> None:
    facts = PreflightFacts(extensions=locked(lock(age_milliseconds=age_milliseconds)))
    (seen,) = look(H200, facts, plan(H200, ZERO2, CPU_ADAM))
    assert may_build == ("may be building" in seen.message)
    assert ("rm /e/cpu_adam/lock",) == seen.fixes


@pytest.mark.parametrize(
    ("ops", "locks", "expected"),
    [
        ((CPU_ADAM,), (), "DeepSpeed compiles `cpu_adam`"),
        ((CPU_ADAM, PIN_MEMORY), (), "DeepSpeed compiles `cpu_adam`, `pin_memory`"),
        ((replace(CPU_ADAM, likely=True),), (), "DeepSpeed likely compiles `cpu_adam`"),
        # What another one builds they load.
        ((CPU_ADAM,), (lock(holder_pid=7),), None),
    ],
)
def test_what_a_job_compiles_is_said(
    ops: tuple[Op, ...], locks: tuple[Lock, ...], expected: str | None
) -> None:
    facts = PreflightFacts(extensions=Extensions(folder="/e", locks=locks))
    seen = [
        each.message.partition(" when ")[0]
        for each in look(H200, facts, plan(H200, ZERO2, *ops))
        if each.rule == COMPILES
    ]
    assert [expected] * (expected is not None) == seen
    assert "compiles" not in codes(H200, PreflightFacts(), plan(H200, ZERO2, *ops))


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        (Folder(path="/nvme", is_folder=False), ["nvme-folder"]),
        (Folder(path="/nvme", is_folder=True, writable=False), ["nvme-folder"]),
        (Folder(path="/nvme", is_folder=True, writable=True, free_bytes=GIB), ["nvme-full"]),
        (Folder(path="/nvme", is_folder=True, writable=True, free_bytes=2**45), []),
        (Folder(path="/nvme", is_folder=True, writable=True), []),
        (Folder(path="/nvme"), []),
    ],
)
def test_the_nvme_folder_must_be_there_and_hold_the_states(
    folder: Folder, expected: list[str]
) -> None:
    planned = plan(H200, ZERO3_OFFLOAD, nvme_path="/nvme")
    machine = replace(H200, host=replace(H200.host, memlock_bytes=UNLIMITED_BYTES))
    assert expected == codes(machine, PreflightFacts(nvme=folder), planned)


def test_states_of_an_earlier_job_are_written_over() -> None:
    folder = Folder(path="/nvme", is_folder=True, writable=True, free_bytes=GIB, holds_states=True)
    planned = plan(H200, ZERO3_OFFLOAD, nvme_path="/nvme")
    assert () == errors_of(look(H200, PreflightFacts(nvme=folder, locks_any_amount=True), planned))
    assert ["nvme-full"] == codes(H200, PreflightFacts(nvme=folder, locks_any_amount=True), planned)


@pytest.mark.parametrize(
    ("machine", "free_bytes", "expected"),
    [
        (H200, 64 * 2**20, ["small-shm"]),
        (H200, 64 * GIB, []),
        (H200, None, []),
        (CPU, 100 * 2**20, ["small-shm"]),
        (CPU, 200 * 2**20, []),
        (CPU, None, []),
        (replace(CPU, gpus=CPU.gpus[:1]), 2**20, []),
    ],
)
def test_shared_memory_must_hold_what_the_ranks_exchange(
    machine: Machine, free_bytes: int | None, expected: list[str]
) -> None:
    machine = replace(machine, host=replace(machine.host, shm_bytes=None))
    assert expected == codes(machine, PreflightFacts(shm_free_bytes=free_bytes))


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (two_nodes(8 * 2**20, INFINIBAND), ["memlock"]),
        (two_nodes(UNLIMITED_BYTES, INFINIBAND), []),
        (two_nodes(None, INFINIBAND), []),
        (two_nodes(8 * 2**20), []),
        (two_nodes(8 * 2**20, replace(INFINIBAND, unusable="port 1 is DOWN")), []),
        (replace(two_nodes(8 * 2**20, INFINIBAND), nodes=1), []),
    ],
)
def test_adapters_that_lock_memory_need_a_limit_that_lets_them(
    machine: Machine, expected: list[str]
) -> None:
    assert expected == codes(machine)
    assert [] == codes(machine, PreflightFacts(locks_any_amount=True))


def test_offload_to_nvme_locks_memory_too() -> None:
    machine = replace(H200, host=replace(H200.host, memlock_bytes=8 * 2**20))
    planned = plan(machine, ZERO3_OFFLOAD, nvme_path="/nvme")
    assert ["memlock"] == codes(machine, planned=planned)


def test_a_checkpoint_is_the_weights_and_twelve_bytes_a_parameter() -> None:
    assert SEVEN.params * (2 + 4 + 8) == checkpoint_bytes(plan())


def test_a_checkpoint_of_adapters_is_theirs_alone() -> None:
    adapters = plan(workload=Workload(method=Method.LORA))
    assert checkpoint_bytes(plan()) > 50 * checkpoint_bytes(adapters) > 0


BUILDS = HostUse(saving=Saving.PORTABLE, builds_on_host=True, is_seen=True)


@pytest.mark.parametrize(
    ("machine", "use", "expected"),
    [
        (with_host(100 * GIB, 50 * GIB), BUILDS, "warning"),
        (with_host(40 * GIB, 30 * GIB), BUILDS, "error"),
        (with_host(40 * GIB, 30 * GIB), replace(BUILDS, builds_on_host=False), None),
        (with_host(None, 30 * GIB), BUILDS, "warning"),
        (with_host(100 * GIB, None), BUILDS, None),
        (with_host(100 * GIB, 60 * GIB), BUILDS, None),
        # The Trainer's ranks each clone the weights to save them, which no job has to do.
        (with_host(100 * GIB, 50 * GIB), HostUse(), "warning"),
        (with_host(40 * GIB, 30 * GIB), HostUse(), "warning"),
        (with_host(100 * GIB, 62 * GIB), HostUse(), None),
        (with_host(40 * GIB, 30 * GIB), HostUse(saving=Saving.PORTABLE), None),
    ],
)
def test_the_host_must_hold_what_its_ranks_build_and_save(
    machine: Machine, use: HostUse, expected: str | None
) -> None:
    planned = plan(machine, host_use=use)
    found = [f.severity.value for f in look(machine, PreflightFacts(script=PLAIN), planned)]
    assert ([] if expected is None else [expected]) == found


@pytest.mark.parametrize(
    "planned",
    [
        plan(with_host(40 * GIB, 30 * GIB), ZERO3, host_use=BUILDS),
        plan(
            with_host(40 * GIB, 30 * GIB),
            DDP,
            workload=Workload(method=Method.QLORA),
            host_use=BUILDS,
        ),
    ],
)
def test_a_model_that_is_built_in_shards_or_on_the_gpu_needs_no_host_memory(
    planned: PlannedJob,
) -> None:
    assert [] == codes(planned.job.machine, PreflightFacts(script=PLAIN), planned)


@pytest.mark.parametrize(
    ("machine", "variable", "expected"),
    [
        (H200, "NCCL_SOCKET_IFNAME", ["no-such-interface"]),
        (CPU, "NCCL_SOCKET_IFNAME", []),
        (CPU, "GLOO_SOCKET_IFNAME", ["no-such-interface"]),
        (H200, "GLOO_SOCKET_IFNAME", []),
    ],
)
def test_a_name_that_nothing_has_is_told_where_it_is_used(
    machine: Machine, variable: str, expected: list[str]
) -> None:
    environ = {variable: "eth9"}
    for exists, told in ((False, expected), (True, [])):
        assert told == codes(
            machine, PreflightFacts(interfaces={variable: exists}), environ=environ
        )


@pytest.mark.parametrize(
    ("machine", "variable", "value", "expected"),
    [
        (H200, "NCCL_P2P_DISABLE", "1", ["slow-by-choice"]),
        (H200, "NCCL_P2P_DISABLE", "0", []),
        (play(recording("synthetic/l40s-x8")), "NCCL_P2P_DISABLE", "1", []),
        (two_nodes(None, INFINIBAND), "NCCL_IB_DISABLE", "1", ["no-such-adapter"]),
        (two_nodes(None, INFINIBAND), "NCCL_NET", "Socket", ["no-such-adapter"]),
        (two_nodes(None), "NCCL_IB_DISABLE", "1", []),
        (H200, "NCCL_IB_DISABLE", "1", []),
        (H200, "CUDA_LAUNCH_BLOCKING", "1", ["slow-by-choice"]),
        (H200, "CUDA_LAUNCH_BLOCKING", "", []),
        (CPU, "CUDA_LAUNCH_BLOCKING", "1", []),
        (H200, "DS_ACCELERATOR", "xpu", ["accelerator"]),
        (H200, "DS_ACCELERATOR", "cuda", []),
        (CPU, "DS_ACCELERATOR", "cuda", []),
        (H200, "NCCL_DEBUG", "INFO", []),
        (H200, "OMP_NUM_THREADS", "1", []),
        (H200, "PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128", ["fragments"]),
        (H200, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", []),
        (H200, "PYTORCH_ALLOC_CONF", "expandable_segments:False", ["fragments"]),
    ],
)
def test_a_variable_that_works_against_the_machine_is_told(
    machine: Machine, variable: str, value: str, expected: list[str]
) -> None:
    found = look(machine, environ={variable: value})
    assert expected == [each.rule.name for each in found if each.rule.name != "busy-gpu"]


def test_the_json_of_a_finding() -> None:
    encoded = encode_findings(look(environ={"DS_ACCELERATOR": "cpu"}), "1.2")
    assert {
        "schema_version": 1,
        "zerowiz_version": "1.2",
        "findings": [
            {
                "code": "PF307",
                "name": "accelerator",
                "severity": "error",
                "what": "`DS_ACCELERATOR=cpu` is set, but the plan is for GPUs",
                "why": "DeepSpeed uses the device that the variable names",
                "mends": ["unset DS_ACCELERATOR"],
                "url": page_of("pf307"),
            }
        ],
    } == encoded


def test_sizes_are_written_in_the_unit_that_shows_them() -> None:
    assert ("64 MiB", "3.1 GiB") == (size(64 * 2**20), size(int(3.1 * GIB)))


@pytest.mark.parametrize(
    ("given", "severity"),
    [
        (resuming(8), Severity.ERROR),
        (resuming(8, ZERO3), Severity.ERROR),
        (resuming(8, DDP), None),
        (resuming(8, load_universal=True), None),
        (resuming(8, load_universal=False), Severity.ERROR),
        (resuming(8, integration=Integration.ACCELERATE), Severity.WARNING),
    ],
    ids=["ZeRO-2", "ZeRO-3", "DDP", "universal", "not universal", "no Trainer"],
)
def test_states_of_other_ranks_load_only_if_they_are_universal(
    given: PreflightInput, severity: Severity | None
) -> None:
    found = [each for each in examine(given) if each.rule is OTHER_RANKS]
    assert [each.severity for each in found] == ([] if severity is None else [severity])


@pytest.mark.parametrize(
    ("stages", "loads"), [((0,), {0}), ((1, 2), {1, 2}), ((3,), {3}), ((), {0, 1, 2, 3})]
)
def test_a_checkpoint_loads_at_the_stages_that_save_such_files(
    stages: tuple[int, ...], loads: set[int]
) -> None:
    """As DeepSpeed 0.19.8 does, for each pair; files of an unknown kind are not judged."""
    for strategy in (DDP, ZERO1, ZERO2, ZERO3):
        found = examine(resuming_from(saved_at(*stages), strategy))
        refused = [each.severity for each in found if each.rule is OTHER_STAGE]
        assert refused == ([] if strategy.stage in loads else [Severity.ERROR]), strategy.name


def test_another_stage_is_a_warning_without_the_trainer_and_nothing_where_universal() -> None:
    plain = examine(resuming_from(saved_at(3), integration=Integration.ACCELERATE))
    assert [each.severity for each in plain if each.rule is OTHER_STAGE] == [Severity.WARNING]
    universal = examine(resuming_from(saved_at(3), section={"load_universal": True}))
    assert OTHER_STAGE not in [each.rule for each in universal]


PORTABLE = ScriptFacts(
    path="train.py",
    convention=Convention.HF_PARSER,
    integration=Integration.HF,
    saves_portably=True,
)


@pytest.mark.parametrize(
    ("given", "finds"),
    [
        (resuming_from(None, is_folder=False), True),
        (resuming_from(None, is_folder=False, path="checkpoint-500"), True),
        (resuming_from(None, is_folder=False, path="True"), False),
        (resuming_from(None, is_folder=False, integration=Integration.ACCELERATE), False),
        (resuming_from(None, script=PORTABLE), False),
    ],
    ids=["no folder", "in this folder", "a switch", "no Trainer", "portable"],
)
def test_a_checkpoint_that_is_not_there_stops_a_script_of_the_trainer(
    given: PreflightInput, finds: bool
) -> None:
    assert finds == (NO_CHECKPOINT in [each.rule for each in examine(given)])


# Each row of the table of bad releases is found at its bounds, and for the jobs that it harms.

ROWS = read_bad_releases()


def severities(job: PreflightInput) -> list[Severity]:
    return [each.severity for each in examine(job) if each.rule.name == "bad-release"]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.harm)
def test_a_row_is_found_from_its_first_release_until_its_last(
    row: BadRelease, strategy: StrategyRow
) -> None:
    def found(version: str) -> list[Severity]:
        workload = Workload(precision=row.precision or Precision.BF16)
        job = bad_release(version, strategy, row.library, workload=workload, uses_peft=row.adapters)
        return severities(job)

    assert found(row.since) == ([row.severity] if strategy.stage in row.stages else [])
    assert row.severity not in found(row.until)


def test_every_row_names_a_page() -> None:
    assert all(source.startswith("https://") for row in ROWS for source in row.sources)
    assert all(not row.affects(row.library, row.upgrade) for row in ROWS)
    assert ROWS == read_facts(None, {}, HostFiles(), cuda=False).bad_releases


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.17.5", []),
        ("0.17.6", [Severity.ERROR]),
        ("0.18.2+cu13", [Severity.ERROR]),
        ("0.18.3", [Severity.WARNING]),
        ("0.19.3", [Severity.WARNING]),
        ("0.19.4", []),
        ("0.19.8", []),
        ("0.18", []),
        ("odd", []),
    ],
)
def test_gradients_are_wrong_in_two_spans_of_deepspeed(
    version: str, expected: list[Severity]
) -> None:
    assert expected == severities(bad_release(version, ZERO2))


def test_only_bf16_meets_a_module_that_runs_twice() -> None:
    assert [] == severities(
        bad_release("0.19.3", ZERO2, workload=Workload(precision=Precision.FP16))
    )


def test_an_adapter_is_empty_only_where_the_trainer_saves_it_and_nothing_gathers() -> None:
    job = bad_release("4.57.1", ZERO3, "transformers", uses_peft=True)
    assert [Severity.ERROR] == severities(job)
    near = [
        bad_release("5.0.0", ZERO3, "transformers", uses_peft=True),
        bad_release("4.57.1", ZERO3, "transformers", uses_peft=False),
        *(
            bad_release("4.57.1", ZERO3, "transformers", uses_peft=True, gathers=gathers)
            for gathers in (True, "auto")
        ),
    ]
    assert job.planned is not None
    own_loop = replace(job.planned, integration=Integration.DEEPSPEED)
    near.append(replace(job, planned=own_loop))
    assert [[]] * len(near) == [severities(each) for each in near]
