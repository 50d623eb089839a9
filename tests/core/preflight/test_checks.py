"""What would end a job: each check on a case that has it, one that has not, and an unknown."""

from collections.abc import Mapping
from typing import Any

import pytest
from core.preflight.cases import (
    CASES,
    CPU,
    GIB,
    H200,
    INFINIBAND,
    SEVEN,
    TOOLS,
    Case,
    bad_release,
    building,
    built_in,
    calling,
    given,
    importing,
    install,
    lock,
    locked,
    plan,
    resuming,
    resuming_from,
    saved_at,
    sharing_sequences,
    started_by,
    two_nodes,
    with_capability,
    with_host,
)

from zerowiz.core.findings import (
    BadRelease,
    Finding,
    Severity,
    errors_of,
    size,
)
from zerowiz.core.machine.types import UNLIMITED_BYTES, Accelerator, Machine
from zerowiz.core.memory.host import HostUse, Saving
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.preflight.builds import COMPILES
from zerowiz.core.preflight.environment import OTHER_STAGE
from zerowiz.core.preflight.examine import RULES, encode_findings, examine
from zerowiz.core.preflight.facts import (
    ASYNC_IO,
    CPU_ADAM,
    FUSED_ADAM,
    PIN_MEMORY,
    Extensions,
    Folder,
    Installed,
    Op,
    PlannedJob,
    PreflightFacts,
    PreflightInput,
    SourceFolder,
    Toolchain,
    Torch,
)
from zerowiz.core.preflight.hardware import checkpoint_bytes
from zerowiz.core.script.facts import Convention, ScriptFacts
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.strategies import DDP, STRATEGIES, ZERO1, ZERO2, ZERO3, ZERO3_OFFLOAD
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration, Loss, Method, Precision, Trainer, Workload
from zerowiz.errors import page_of
from zerowiz.probe.files import Files, read_bad_releases
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
            built=frozenset({"cpu_adam", "fused_adam"}),
        ),
        shm_free_bytes=64 * GIB,
        checkpoints=Folder(path="out", free_bytes=2**50),
    )
    assert [] == codes(H200, facts, plan(H200, ZERO2, CPU_ADAM, FUSED_ADAM))


BUILDS = HostUse(saving=Saving.PORTABLE, builds_on_host=True, is_seen=True)
PORTABLE = ScriptFacts(
    path="train.py",
    convention=Convention.HF_PARSER,
    integration=Integration.HF,
    saves_portably=True,
)
# For each GPU of a machine of four.
FOUR = ", ".join(["{0} error"] * 4)
FP16, BF16, FP32 = Precision.FP16, Precision.BF16, Precision.FP32
BARE = replace(TOOLS, has_compiler=False, has_ninja=False, has_nvcc=False)
LIKELY = replace(CPU_ADAM, likely=True)
SMALL = replace(H200, host=replace(H200.host, memlock_bytes=8 * 2**20))
UNBOUND = replace(H200, host=replace(H200.host, memlock_bytes=UNLIMITED_BYTES))


def with_deepspeed(version: str | None) -> PreflightInput:
    return given(PreflightFacts(installed=install(deepspeed=version)))


def with_torch(torch: Torch | None, machine: Machine = H200) -> PreflightInput:
    return given(PreflightFacts(installed=install(torch)), None, machine)


def driven(built: tuple[int, int], driver: tuple[int, int] | None) -> PreflightInput:
    torch = Torch(version="2.13.0", cuda_version=built)
    return with_torch(torch, replace(H200, cuda_version=driver))


def computing(
    capability: tuple[int, int] | None, kind: Precision, **environ: str
) -> PreflightInput:
    machine = with_capability(capability)
    return given(None, plan(machine, workload=Workload(precision=kind)), machine, **environ)


def on_cpu(
    kind: Precision, autocast: Precision | None = None, *, computes: bool | None
) -> PreflightInput:
    machine = replace(CPU, host=replace(CPU.host, computes_bf16=computes, computes_fp16=computes))
    workload = Workload(precision=kind, torch_autocast=autocast)
    return given(None, plan(machine, workload=workload), machine)


def with_tools(
    tools: Toolchain, *ops: Op, machine: Machine = H200, prebuilt: frozenset[str] = frozenset()
) -> PreflightInput:
    facts = PreflightFacts(installed=replace(install(), prebuilt=prebuilt), toolchain=tools)
    return given(facts, plan(machine, ZERO2, *ops), machine)


def for_archs(text: str, op: Op = FUSED_ADAM) -> PreflightInput:
    return building(op, TORCH_CUDA_ARCH_LIST=text)


def to_nvme(machine: Machine = UNBOUND, **fields: Any) -> PreflightInput:
    folder = Folder(path="/nvme", **fields)
    planned = plan(machine, ZERO3_OFFLOAD, nvme_path="/nvme")
    return given(PreflightFacts(nvme=folder), planned, machine)


def sharing(machine: Machine, free_bytes: int | None) -> PreflightInput:
    machine = replace(machine, host=replace(machine.host, shm_bytes=None))
    return given(PreflightFacts(shm_free_bytes=free_bytes), None, machine)


def linked(machine: Machine, *, locks_any_amount: bool | None = None) -> PreflightInput:
    return given(PreflightFacts(locks_any_amount=locks_any_amount), None, machine)


def hosted(
    total_gib: int | None,
    free_gib: int | None,
    use: HostUse | None = None,
    strategy: StrategyRow = ZERO2,
    method: Method = Method.FULL,
) -> PreflightInput:
    total, free = (None if gib is None else gib * GIB for gib in (total_gib, free_gib))
    machine, workload = with_host(total, free), Workload(method=method)
    planned = plan(machine, strategy, workload=workload, host_use=use)
    return given(None, planned, machine)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        pytest.param(inputs, expected.split(", ") if expected else [], id=f"{what}: {number}")
        for what, rows in {
            "the ranks' Python starts, and is best zerowiz's": (
                (started_by(failure="does not exist"), "no-interpreter error"),
                (started_by(failure="is slow", is_slow=True), "no-interpreter warning"),
                (started_by(own=False), "other-environment warning"),
                (started_by(own=True), ""),
                (given(PreflightFacts(installed=Installed(program="/x/deepspeed"))), ""),
            ),
            "an old DeepSpeed is a warning": (
                (with_deepspeed("0.18.2"), "old-deepspeed warning"),
                (with_deepspeed("0.19.7+cu13"), "old-deepspeed warning"),
                (with_deepspeed("0.19.8"), ""),
                (with_deepspeed("0.20.0"), ""),
                (with_deepspeed("1.0.0"), ""),
                (with_deepspeed("odd"), ""),
                (with_deepspeed(None), ""),
            ),
            "GPUs need a torch with CUDA": (
                (with_torch(Torch(version="2.13.0+cpu")), "torch-without-cuda error"),
                (with_torch(Torch(version="2.13.0+cpu"), CPU), ""),
                (with_torch(None), ""),
            ),
            "a driver runs its own major version of CUDA, and older ones": (
                (driven((13, 0), (12, 8)), "old-driver error"),
                (driven((12, 8), (12, 2)), ""),
                (driven((12, 8), (13, 0)), ""),
                (driven((11, 8), (12, 0)), ""),
                (driven((12, 1), (11, 8)), "old-driver error"),
                (driven((10, 1), (10, 2)), ""),
                (driven((13, 0), None), ""),
            ),
            "a number format is held against the GPU": (
                (computing((7, 0), FP16), ""),
                (computing((6, 1), FP16), FOUR.format("half-precision")),
                (computing((6, 1), FP16, DS_ALLOW_DEPRECATED_FP16="1"), ""),
                (
                    computing((5, 2), FP16, DS_ALLOW_DEPRECATED_FP16="1"),
                    FOUR.format("half-precision"),
                ),
                (computing(None, FP16), ""),
                (computing((7, 5), BF16), "slow-by-choice warning"),
                (computing((8, 0), BF16), ""),
                (computing(None, BF16), ""),
                (computing((5, 2), FP32), ""),
            ),
            "a number format is held against the CPU": (
                (on_cpu(FP16, computes=False), "half-precision error"),
                (on_cpu(FP16, computes=True), ""),
                (on_cpu(FP16, computes=None), ""),
                (on_cpu(BF16, computes=False), "slow-by-choice warning"),
                (on_cpu(BF16, computes=True), ""),
                (on_cpu(BF16, computes=None), ""),
                (on_cpu(FP32, BF16, computes=False), "slow-by-choice warning"),
                (on_cpu(FP32, computes=False), ""),
            ),
            "what an op is built with": (
                (with_tools(replace(TOOLS, has_ninja=False), LIKELY), "no-ninja warning"),
                (
                    with_tools(replace(TOOLS, has_ninja=False, has_libaio=False), LIKELY, ASYNC_IO),
                    "no-ninja error, no-libaio error",
                ),
                # It came with DeepSpeed.
                (with_tools(BARE, FUSED_ADAM, prebuilt=frozenset({"fused_adam"})), ""),
                (with_tools(replace(TOOLS, has_nvcc=False), FUSED_ADAM, machine=CPU), ""),
            ),
            "the arch list is one that DeepSpeed reads": (
                (for_archs("9.0a"), "arch-list error"),
                (for_archs("8.0;Hopper"), "arch-list error"),
                (for_archs("8.0,9.0"), "arch-list error"),
                (for_archs("90"), "arch-list error"),
                (for_archs("9.0"), ""),
                (for_archs("9.0+PTX"), ""),
                (for_archs("8.0 9.0"), ""),
                (for_archs("8.0;9.0;"), ""),
                (for_archs(" "), ""),
                (for_archs("9.0a", CPU_ADAM), ""),
            ),
            "the folder of ops takes them": (
                (built_in(Extensions(folder="/e", writable=False)), "extensions-folder error"),
                (built_in(Extensions(folder="/e", writable=None)), ""),
                (
                    given(
                        PreflightFacts(extensions=Extensions(folder="/e", writable=False)), plan()
                    ),
                    "",
                ),
            ),
            "a lock ends a launch where nobody can have it open": (
                (built_in(locked(lock(sees_all=True))), "stale-lock error"),
                # A process of another user, container or host may have it open.
                (built_in(locked(lock())), "stale-lock warning"),
                (built_in(locked(lock("gds", sees_all=True))), ""),
            ),
            "the NVMe folder is there and holds the states": (
                (to_nvme(is_folder=False), "nvme-folder error"),
                (to_nvme(is_folder=True, writable=False), "nvme-folder error"),
                (to_nvme(is_folder=True, writable=True, free_bytes=GIB), "nvme-full error"),
                # Those of an earlier job are written over.
                (
                    to_nvme(is_folder=True, writable=True, free_bytes=GIB, holds_states=True),
                    "nvme-full warning",
                ),
                (to_nvme(is_folder=True, writable=True, free_bytes=2**45), ""),
                (to_nvme(is_folder=True, writable=True), ""),
                (to_nvme(), ""),
                (to_nvme(SMALL), "memlock warning"),
            ),
            "shared memory holds what the ranks exchange": (
                (sharing(H200, 64 * 2**20), "small-shm warning"),
                (sharing(H200, 64 * GIB), ""),
                (sharing(H200, None), ""),
                (sharing(CPU, 100 * 2**20), "small-shm warning"),
                (sharing(CPU, 200 * 2**20), ""),
                (sharing(CPU, None), ""),
                (sharing(replace(CPU, gpus=CPU.gpus[:1]), 2**20), ""),
            ),
            "adapters that lock memory need a limit that lets them": (
                (linked(two_nodes(8 * 2**20, INFINIBAND)), "memlock warning"),
                (linked(two_nodes(8 * 2**20, INFINIBAND), locks_any_amount=True), ""),
                (linked(two_nodes(UNLIMITED_BYTES, INFINIBAND)), ""),
                (linked(two_nodes(None, INFINIBAND)), ""),
                (linked(two_nodes(8 * 2**20)), ""),
                (linked(two_nodes(8 * 2**20, replace(INFINIBAND, unusable="DOWN"))), ""),
                (linked(replace(two_nodes(8 * 2**20, INFINIBAND), nodes=1)), ""),
            ),
            "the host holds what its ranks build and save": (
                (hosted(100, 50, BUILDS), "host-memory warning"),
                (hosted(40, 30, BUILDS), "host-memory error"),
                (hosted(40, 30, replace(BUILDS, builds_on_host=False)), ""),
                (hosted(None, 30, BUILDS), "host-memory warning"),
                (hosted(100, None, BUILDS), ""),
                (hosted(100, 60, BUILDS), ""),
                # The Trainer's ranks each clone the weights to save them, which no job has to do.
                (hosted(100, 50), "host-memory warning"),
                (hosted(40, 30), "host-memory warning"),
                (hosted(100, 62), ""),
                (hosted(40, 30, HostUse(saving=Saving.PORTABLE)), ""),
                # Built in shards, or on the GPU.
                (hosted(40, 30, BUILDS, ZERO3), ""),
                (hosted(40, 30, BUILDS, DDP, Method.QLORA), ""),
            ),
            "states of other ranks load only if they are universal": (
                (resuming(8), "other-ranks error"),
                (resuming(8, ZERO3), "other-ranks error"),
                (resuming(8, DDP), ""),
                (resuming(8, load_universal=True), ""),
                (resuming(8, load_universal=False), "other-ranks error"),
                (resuming(8, integration=Integration.ACCELERATE), "other-ranks warning"),
            ),
            "states of another stage": (
                (
                    resuming_from(saved_at(3), integration=Integration.ACCELERATE),
                    "other-stage warning",
                ),
                (resuming_from(saved_at(3), section={"load_universal": True}), ""),
            ),
        }.items()
        for number, (inputs, expected) in enumerate(rows)
    ],
)
def test_what_is_found_and_how_bad_it_is(inputs: PreflightInput, expected: list[str]) -> None:
    assert expected == [
        f"{each.rule.name} {each.severity}" for each in examine(inputs) if each.rule != COMPILES
    ]


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


def test_what_the_templates_bring_is_copied_and_not_installed() -> None:
    (finding,) = errors_of(examine(importing("portable_checkpoint")))
    assert "templates/portable_checkpoint" in finding.fixes[0]


@pytest.mark.parametrize(
    ("module", "package"), [("sklearn", "scikit-learn"), ("my_data", "my_data")]
)
def test_a_module_that_is_missing_is_installed_by_the_name_of_its_package(
    module: str, package: str
) -> None:
    (finding,) = errors_of(examine(importing(module)))
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
    (finding,) = errors_of(examine(importing("fastchat", source)))
    assert finding.fixes[0].endswith(fix)


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


def test_of_a_lock_that_another_host_may_hold_the_age_is_said() -> None:
    facts = PreflightFacts(extensions=locked(lock(age_milliseconds=900_000)))
    (seen,) = look(H200, facts, plan(H200, ZERO2, CPU_ADAM))
    assert "is 15 minutes old" in seen.message
    assert "may be building" in seen.message
    assert ("rm /e/cpu_adam/lock",) == seen.fixes


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ((CPU_ADAM,), "DeepSpeed compiles `cpu_adam`"),
        ((CPU_ADAM, PIN_MEMORY), "DeepSpeed compiles `cpu_adam`, `pin_memory`"),
        ((replace(CPU_ADAM, likely=True),), "DeepSpeed likely compiles `cpu_adam`"),
    ],
)
def test_what_a_job_compiles_is_said(ops: tuple[Op, ...], expected: str) -> None:
    facts = PreflightFacts(extensions=Extensions(folder="/e"))
    seen = [
        each.message.partition(" when ")[0]
        for each in look(H200, facts, plan(H200, ZERO2, *ops))
        if each.rule == COMPILES
    ]
    assert [expected] == seen
    assert "compiles" not in codes(H200, PreflightFacts(), plan(H200, ZERO2, *ops))


def test_a_checkpoint_is_the_weights_and_twelve_bytes_a_parameter() -> None:
    assert SEVEN.params * (2 + 4 + 8) == checkpoint_bytes(plan())


def test_a_checkpoint_of_adapters_is_theirs_alone() -> None:
    adapters = plan(workload=Workload(method=Method.LORA))
    assert checkpoint_bytes(plan()) > 50 * checkpoint_bytes(adapters) > 0


def test_the_json_of_a_finding() -> None:
    facts = PreflightFacts(nvme=Folder(path="/nvme", is_folder=True, writable=True, free_bytes=GIB))
    planned = plan(UNBOUND, ZERO3_OFFLOAD, nvme_path="/nvme")
    assert {
        "schema_version": 1,
        "zerowiz_version": "1.2",
        "findings": [
            {
                "code": "PF502",
                "name": "nvme-full",
                "severity": "error",
                "what": "`/nvme` has 1.0 GiB free, and the ranks write 117.4 GiB",
                "why": "the offloaded states do not fit on the drive",
                "mends": ["choose another drive with `--nvme-path DIR`"],
                "url": page_of("pf502"),
            }
        ],
    } == encode_findings(look(UNBOUND, facts, planned), "1.2")


def test_sizes_are_written_in_the_unit_that_shows_them() -> None:
    assert ("64 MiB", "3.1 GiB") == (size(64 * 2**20), size(int(3.1 * GIB)))


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


# Each row of the table of bad releases is found at its bounds, and for the jobs that it harms.

ROWS = read_bad_releases()


def severities(job: PreflightInput) -> list[Severity]:
    return [each.severity for each in examine(job) if each.rule.name == "bad-release"]


def harmed_by(row: BadRelease, strategy: StrategyRow, version: str) -> PreflightInput:
    """A job of the Trainer that meets each condition of a row, at this strategy."""
    when: dict[str, Any] = {name: values[-1] for name, values in row.when.items()}
    adapts = when.get("lora") or when.get("empty_adapter")
    workload = Workload(
        precision=Precision(when.get("precision", "bf16")),
        accumulation_steps=when.get("micro_batches", 1),
        trainer=Trainer(when.get("trainer", "sft")),
        loss=Loss(when.get("loss", "plain")),
        method=Method.LORA if adapts else Method.FULL,
        gradient_checkpointing=when.get("checkpointing", False),
        sequence_parallel=2 if when.get("sequence_parallel") else 1,
    )
    libraries = {
        "torch": when.get("torch", "2.9.0"),
        "deepspeed": when.get("deepspeed", "0.0.1"),
    }
    libraries |= {row.library: version}
    job = bad_release(strategy, workload=workload, uses_peft=bool(adapts), **libraries)
    planned = job.planned
    assert planned is not None
    if when.get("expert_parallel") or when.get("experts"):
        mixture = replace(SEVEN, architecture=replace(SEVEN.architecture, experts=2))
        workload = replace(workload, expert_parallel=2 if when.get("expert_parallel") else 1)
        planned = replace(planned, job=replace(planned.job, model=mixture, workload=workload))
    if when.get("on_cpu"):
        machine = replace(planned.job.machine, accelerator=Accelerator.CPU)
        planned = replace(planned, job=replace(planned.job, machine=machine))
    zero: dict[str, Any] = {"zero_hpz_partition_size": 8}
    zero |= {"stage3_gather_16bit_weights_on_model_save": False}
    zero |= {"overlap_comm": True, "stage3_prefetch_bucket_size": "auto"}
    integration = Integration(when.get("integration", "hf"))
    config = {"zero_optimization": zero, "data_types": {"grad_accum_dtype": "fp32"}}
    made: dict[str, Any] = {"optimizer": {}} if when.get("configured_optimizer") else {}
    made |= {"optimizer": {"type": "Muon"}} if when.get("scattered_muon") else {}
    made |= {"scheduler": {"type": "WarmupLR"}, "communication_data_type": "fp32"}
    called = {name for name in ("resize_token_embeddings", "save_model") if when.get(name)}
    script = calling("backward", *called)
    planned = replace(planned, config=config | made, integration=integration, script=script)
    return replace(job, planned=planned)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.harm)
def test_a_row_is_found_from_its_first_release_until_its_last(row: BadRelease) -> None:
    def found(version: str, strategy: StrategyRow) -> list[Severity]:
        findings = examine(harmed_by(row, strategy, version))
        return [each.severity for each in findings if row.harm in each.message]

    for strategy in STRATEGIES:
        is_met = strategy.stage in row.when.get("stage", (0, 1, 2, 3))
        offloads = strategy.offload is not Offload.NONE
        is_met = is_met and offloads in row.when.get("offload", (True, False))
        assert found(row.since, strategy) == ([row.severity] if is_met else []), strategy.name
        assert found(row.until, strategy) == found(row.upgrade, strategy) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.harm)
def test_a_row_asks_for_each_of_its_conditions(row: BadRelease) -> None:
    met: dict[str, object] = {name: values[0] for name, values in row.when.items()}
    assert row.severity is row.severity_for(met)
    for name in met:
        assert row.severity_for({**met, name: "another"}) is None
        # What nobody can see is only good to know.
        assert Severity.INFO is row.severity_for({**met, name: None})


@pytest.mark.parametrize("library", ["accelerate", "transformers"])
def test_a_release_without_sequence_parallelism_harms_no_other_job(library: str) -> None:
    versions: dict[str, Any] = {library: "1.0.0"}
    found = examine(bad_release(ZERO2, **versions))
    assert not any("sequence" in each.message for each in found)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (sharing_sequences(), []),
        (sharing_sequences(names_positions=False), ["train.py has no `position_ids`"]),
        (sharing_sequences(names_positions=False, packing=True), []),
        (
            sharing_sequences(1),
            ["`ParallelismConfig(dp_shard_size=1)` in train.py line 7 says 1, but 2"],
        ),
    ],
)
def test_what_ends_a_job_whose_gpus_share_sequences_is_found(
    job: PreflightInput, expected: list[str]
) -> None:
    found = [each.message for each in examine(job) if each.rule.name == "sequence-parallel"]
    assert len(expected) == len(found)
    assert all(said in message for said, message in zip(expected, found, strict=True))


def test_every_row_names_a_page() -> None:
    assert all(source.startswith("https://") for row in ROWS for source in row.sources)
    assert all(not row.affects(row.library, row.upgrade) for row in ROWS)
    assert ROWS == read_facts(None, {}, Files(), cuda=False).bad_releases


@pytest.mark.parametrize(
    ("steps", "version", "expected"),
    [
        (2, "0.17.5", []),
        (2, "0.17.6", [Severity.ERROR]),
        (2, "0.18.2+cu13", [Severity.ERROR]),
        (1, "0.18.2", []),
        (2, "0.19.8", []),
        (2, "0.18", []),
        (2, "odd", []),
    ],
)
def test_gradients_are_wrong_in_a_span_of_deepspeed(
    steps: int, version: str, expected: list[Severity]
) -> None:
    workload = Workload(accumulation_steps=steps)
    assert expected == severities(bad_release(ZERO2, workload=workload, deepspeed=version))
    of_stage_1 = severities(bad_release(ZERO1, workload=workload, deepspeed=version))
    assert Severity.ERROR not in of_stage_1


@pytest.mark.parametrize(
    ("steps", "version", "expected"),
    [(1, "0.19.5", []), (2, "0.19.5", [Severity.INFO]), (2, "0.19.6", [])],
)
def test_only_accumulation_meets_a_loss_beside_the_engine(
    steps: int, version: str, expected: list[Severity]
) -> None:
    workload = Workload(accumulation_steps=steps)
    assert expected == severities(bad_release(ZERO2, workload=workload, deepspeed=version))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (calling("backward", "accumulate"), []),
        (calling("accumulate"), []),
        (calling("backward"), [Severity.WARNING]),
        (calling("fit"), [Severity.INFO]),
        (None, [Severity.INFO]),
    ],
)
def test_only_a_loop_without_accumulate_steps_after_each_micro_batch(
    script: ScriptRun | None, expected: list[Severity]
) -> None:
    job = bad_release(ZERO2, workload=Workload(accumulation_steps=2), accelerate="1.15.0")
    assert job.planned is not None
    planned = replace(job.planned, integration=Integration.ACCELERATE, script=script)
    assert expected == severities(replace(job, planned=planned))


def test_an_adapter_is_empty_only_where_the_trainer_saves_it_and_nothing_gathers() -> None:
    job = bad_release(ZERO3, uses_peft=True, transformers="4.57.1")
    assert Severity.ERROR in severities(job)
    near = [
        bad_release(ZERO3, uses_peft=True, transformers="5.0.0"),
        bad_release(ZERO3, uses_peft=False, transformers="4.57.1"),
        *(
            bad_release(ZERO3, uses_peft=True, gathers=gathers, transformers="4.57.1")
            for gathers in (True, "auto")
        ),
    ]
    assert job.planned is not None
    own_loop = replace(job.planned, integration=Integration.DEEPSPEED)
    near.append(replace(job, planned=own_loop))
    assert not any(Severity.ERROR in severities(each) for each in near)
