"""List for each preflight check a job that it finds something of, and one that it nearly does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recorded import play, recording

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.machine.types import (
    Accelerator,
    Gpu,
    Host,
    Machine,
    MachineSource,
    Network,
    NetworkKind,
    Nic,
)
from zerowiz.core.memory.host import HostUse
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.model.from_name import model_from_size
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
    SavedStates,
    SourceFolder,
    Toolchain,
    Torch,
)
from zerowiz.core.script.arguments import (
    Option,
    ScriptParser,
)
from zerowiz.core.script.facts import (
    Convention,
    Placement,
    ScriptCall,
    ScriptFacts,
    StageCall,
    StageKind,
    TrainerFacts,
    TrainerUse,
    ValueSource,
    WeightSave,
)
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.strategies import ZERO1, ZERO2, ZERO3, ZERO3_OFFLOAD
from zerowiz.core.structs import replace
from zerowiz.core.workload import Attention, Integration, Method, Precision, Workload
from zerowiz.probe.files import read_bad_releases

GIB = 2**30
H200 = play(recording("h200-x4"))
CPU = Machine(
    source=MachineSource.CPU,
    accelerator=Accelerator.CPU,
    gpus=tuple(Gpu(index=i, name="CPU rank", free_bytes=8 * GIB) for i in range(2)),
    host=Host(total_bytes=16 * GIB, available_bytes=16 * GIB),
)
SEVEN = model_from_size("7b", 7 * 10**9)
CUDA13 = Torch(
    version="2.13.0+cu130",
    cuda_version=(13, 0),
)
TOOLS = Toolchain(
    compiler="c++",
    has_compiler=True,
    has_ninja=True,
    cuda_home="/usr/local/cuda",
    has_nvcc=True,
    cuda_version=(13, 0),
    has_libaio=True,
)


LIBRARIES: Mapping[str, str | None] = dict.fromkeys(
    (
        *("torch", "deepspeed", "transformers", "accelerate", "peft", "bitsandbytes"),
        *("setuptools", "datasets"),
    )
)


def install(
    torch: Torch | None = CUDA13, /, lacks: str | None = None, **versions: str | None
) -> Installed:
    """A Python that has all libraries but one, with these releases."""
    modules = {name: version for name, version in LIBRARIES.items() if name != lacks}
    return Installed(
        program="/env/bin/deepspeed",
        interpreter="/env/bin/python",
        own=True,
        modules={**modules, **versions},
        torch=torch,
        has_headers=True,
    )


def plan(
    machine: Machine = H200,
    strategy: StrategyRow = ZERO2,
    *ops: Op,
    workload: Workload | None = None,
    nvme_path: str | None = None,
    integration: Integration = Integration.DEEPSPEED,
    host_use: HostUse | None = None,
) -> PlannedJob:
    job = Job(
        machine=machine,
        model=SEVEN,
        workload=workload or Workload(),
        nvme_path=nvme_path,
        host_use=host_use or HostUse(),
    )
    return PlannedJob(job=job, evaluated=evaluate(job, strategy), integration=integration, ops=ops)


def with_capability(capability: tuple[int, int] | None) -> Machine:
    gpus = tuple(replace(gpu, compute_capability=capability) for gpu in H200.gpus)
    return replace(H200, gpus=gpus)


def with_host(total_bytes: int | None, available_bytes: int | None) -> Machine:
    host = Host(total_bytes=total_bytes, available_bytes=available_bytes)
    return replace(H200, host=host)


def two_nodes(memlock_bytes: int | None, *nics: Nic) -> Machine:
    host = replace(H200.host, memlock_bytes=memlock_bytes)
    return replace(H200, nodes=2, host=host, network=Network(nics=nics))


INFINIBAND = Nic(name="mlx5_0", kind=NetworkKind.INFINIBAND)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A job that a rule finds something of, and one that it nearly does."""

    rule: str
    found: PreflightInput
    near: PreflightInput


def case(rule: str, found: PreflightInput, near: PreflightInput) -> Case:
    return Case(rule=rule, found=found, near=near)


def given(
    facts: PreflightFacts | None = None,
    planned: PlannedJob | None = None,
    machine: Machine = H200,
    **environ: str,
) -> PreflightInput:
    return PreflightInput(
        machine=machine, planned=planned, facts=facts or PreflightFacts(), environ=environ
    )


def installed(
    torch: Torch | None = CUDA13, /, lacks: str | None = None, **versions: str | None
) -> PreflightInput:
    return given(PreflightFacts(installed=install(torch, lacks, **versions)))


def bad_release(
    strategy: StrategyRow,
    *,
    workload: Workload | None = None,
    uses_peft: bool = False,
    gathers: bool | str = False,
    **versions: str,
) -> PreflightInput:
    """A job of the Trainer with these releases, and what is known against releases."""
    zero = {"stage": strategy.stage, "stage3_gather_16bit_weights_on_model_save": gathers}
    planned = replace(
        plan(H200, strategy, workload=workload, integration=Integration.HF),
        uses_peft=uses_peft,
        config={"zero_optimization": zero},
    )
    facts = PreflightFacts(installed=install(**versions), bad_releases=read_bad_releases())
    return given(facts, planned)


def started_by(**fields: Any) -> PreflightInput:
    program = Installed(program="/x/bin/deepspeed", interpreter="/x/bin/python", **fields)
    return given(PreflightFacts(installed=program))


def importing(name: str, source: SourceFolder | None = None) -> PreflightInput:
    module = Import(path="pkg/train.py", line=3, name=name, source=source)
    return given(PreflightFacts(installed=install(), imports=(module,)))


def calling(*methods: str) -> ScriptRun:
    """A script that calls these methods."""
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.ACCELERATOR,
        integration=Integration.ACCELERATE,
        calls=frozenset(methods),
    )
    return ScriptRun(facts)


def loaded(
    place: str | int | None,
    machine: Machine = H200,
    strategy: StrategyRow = ZERO2,
    integration: Integration = Integration.HF,
    **fields: Any,
) -> PreflightInput:
    """A script that loads its model with this device map."""
    fields = {"is_map": False, "engine_is_known": True, **fields}
    placement = Placement(
        place=ValueSource(value=place), line=7, code="load(device_map=x)", **fields
    )
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.HF_PARSER,
        integration=integration,
        placements=(placement,),
    )
    job = plan(machine, strategy, integration=integration)
    return given(None, replace(job, script=ScriptRun(facts)), machine)


def resuming(
    ranks: int,
    strategy: StrategyRow = ZERO2,
    integration: Integration = Integration.HF,
    **section: bool,
) -> PreflightInput:
    """A job of four ranks, from a checkpoint of this many at the same stage."""
    stages = (strategy.stage,) if strategy.stage in {0, 3} else (1, 2)
    saved = SavedStates(path="out/checkpoint-500", tag="global_step500", stages=stages, ranks=ranks)
    return resuming_from(saved, strategy, integration, section=section)


def resuming_from(
    saved: SavedStates | None,
    strategy: StrategyRow = ZERO2,
    integration: Integration = Integration.HF,
    *,
    section: Mapping[str, bool] | None = None,
) -> PreflightInput:
    """A job of four ranks, from a checkpoint with these states."""
    job = plan(H200, strategy, integration=integration)
    job = replace(job, config={"checkpoint": section or {}})
    return given(PreflightFacts(resumed=saved), job, H200)


def saved_at(*stages: int) -> SavedStates:
    """States of four ranks."""
    return SavedStates(
        path="out/checkpoint-500",
        tag="global_step500",
        stages=stages,
        ranks=None if stages == (0,) else 4,
    )


def with_fsdp(
    value: str | bool | None, integration: Integration = Integration.HF
) -> PreflightInput:
    binding = ValueSource(value=value, line=7, code=f"TrainingArguments(fsdp={value!r})")
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.HF_PARSER,
        integration=integration,
        sources={"fsdp": binding},
    )
    return given(None, replace(plan(integration=integration), script=ScriptRun(facts)))


def needing(*words: str) -> PreflightInput:
    """A script that needs `--data_path`, with these words after it."""
    needed = Option(flags=("--data_path",), dest="data_path", required=True, line=12)
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.ADD_CONFIG_ARGUMENTS,
        integration=Integration.DEEPSPEED,
        parser=ScriptParser(options=(needed,)),
    )
    return given(None, replace(plan(), script=ScriptRun(facts, words)))


def removing(*words: str, release: str = "5.23.0", own_line: int | None = None) -> PreflightInput:
    """A script of HfArgumentParser that refuses words it does not know, with these words."""
    warmup = Option(flags=("--warmup_steps", "--warmup_ratio"), dest="warmup_steps", line=own_line)
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.HF_PARSER,
        integration=Integration.HF,
        parser=ScriptParser(options=(warmup,), strict=True),
    )
    here = PreflightFacts(installed=install(transformers=release))
    return given(here, replace(plan(integration=Integration.HF), script=ScriptRun(facts, words)))


def saving(
    strategy: StrategyRow,
    integration: Integration = Integration.HF,
    *conditions: ValueSource,
    adapters_only: bool = True,
    rank: int | None = None,
    escalates: bool = False,
) -> PreflightInput:
    """A script that saves its model by itself; with a rank, of adapters."""
    save = WeightSave(
        line=7, code="net.save_pretrained('o')", conditions=conditions, adapters_only=adapters_only
    )
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.HF_PARSER,
        integration=integration,
        weight_saves=(save,),
    )
    adapted = None if rank is None else Workload(method=Method.LORA, lora_rank=rank)
    job = plan(H200, strategy, workload=adapted, integration=integration)
    job = replace(job, script=ScriptRun(facts), uses_peft=rank is not None, escalates=escalates)
    return given(None, job, H200)


STAGED = {
    StageKind.ALONE: "accelerator.save_state('o')",
    StageKind.READS: "model.get_input_embeddings()",
    StageKind.NO_SYNC: "engine.no_sync()",
}


def staged(
    kind: StageKind,
    strategy: StrategyRow,
    *conditions: ValueSource,
    escalates: bool = False,
    machine: Machine = H200,
) -> PreflightInput:
    """A script with a call that is wrong at some stages."""
    call = StageCall(kind=kind, line=7, code=STAGED.get(kind, "f()"), conditions=conditions)
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.HF_PARSER,
        integration=Integration.HF,
        stage_calls=(call,),
    )
    job = plan(machine, strategy, integration=Integration.HF)
    return given(None, replace(job, script=ScriptRun(facts), escalates=escalates), machine)


def refusing(
    *fields: str, strategy: StrategyRow, integration: Integration = Integration.HF
) -> PreflightInput:
    """A script that sets fields of TrainingArguments."""
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.HF_IN_CODE,
        integration=integration,
        sources={name: ValueSource(value=True, line=3, code=f"{name}=True") for name in fields},
    )
    job = plan(H200, strategy, integration=integration)
    return given(None, replace(job, script=ScriptRun(facts)), H200)


def handing(
    integration: Integration = Integration.HF,
    *conditions: ValueSource,
    config: Mapping[str, object] | None = None,
) -> PreflightInput:
    """A script that hands its trainer an optimizer."""
    call = ScriptCall(line=7, code="Trainer(optimizers=(mine, None))", conditions=conditions)
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.HF_PARSER,
        integration=integration,
        optimizers_passed=(call,),
    )
    job = replace(plan(integration=integration), script=ScriptRun(facts), config=config)
    return given(None, job)


def floating(precision: Precision = Precision.BF16, *, sees: bool = True) -> PreflightInput:
    """A loop that makes floats, or that shows nothing of its batches."""
    source = ValueSource(value=sees, line=7, code="torch.randn(64, 16)")
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.ADD_CONFIG_ARGUMENTS,
        integration=Integration.DEEPSPEED,
        sources={"float_batches": source},
    )
    job = plan(workload=Workload(precision=precision))
    return given(None, replace(job, script=ScriptRun(facts)))


DUMMY = ValueSource(from_config=True, line=7, code="DummyOptim(...)")
LION_8BIT = ValueSource(line=7, code="bnb.optim.Lion8bit(...)")


def preparing(own: ValueSource, strategy: StrategyRow = ZERO2, **config: object) -> PreflightInput:
    """A script that hands Accelerate an optimizer."""
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.ACCELERATOR,
        integration=Integration.ACCELERATE,
        sources={"optimizer": own},
    )
    job = plan(strategy=strategy, integration=Integration.ACCELERATE)
    return given(None, replace(job, script=ScriptRun(facts), config=config))


def lightning(
    machine: Machine = H200,
    devices: int | str = 4,
    strategy: str = "deepspeed",
    **config: object,
) -> PreflightInput:
    """A script with a Trainer of Lightning."""
    asked = ValueSource(value=devices, line=7, code="L.Trainer(devices=...)", keyword="devices")
    named = replace(asked, value=strategy, code="L.Trainer(strategy=...)", keyword="strategy")
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.LIGHTNING,
        integration=Integration.LIGHTNING,
        sources={"devices": asked, "strategy": named},
    )
    job = plan(machine, integration=Integration.LIGHTNING)
    return given(None, replace(job, script=ScriptRun(facts), config=config), machine)


def sharing_sequences(
    data: int = 2,
    *,
    names_positions: bool = True,
    packing: bool = False,
    trainer: str = "Trainer",
) -> PreflightInput:
    """A script with a trainer, of which two GPUs share each sequence."""
    asked = ValueSource(
        value=data, line=7, code=f"ParallelismConfig(dp_shard_size={data})", keyword="dp_shard_size"
    )
    facts = ScriptFacts(
        path="train.py",
        convention=Convention.HF_PARSER,
        integration=Integration.HF,
        names_positions=names_positions,
        trainer=TrainerFacts(uses=(TrainerUse(name=trainer, line=9, code=trainer),)),
        sources={"data_parallel": asked},
    )
    attention = Attention.FLASH if packing else Attention.SDPA
    step = Workload(sequence_parallel=2, packing=packing, attention=attention)
    job = plan(H200, workload=step, integration=Integration.HF)
    return given(None, replace(job, script=ScriptRun(facts)))


def building(
    op: Op, tools: Toolchain = TOOLS, *, has_headers: bool | None = True, **environ: str
) -> PreflightInput:
    python = replace(install(), has_headers=has_headers)
    facts = PreflightFacts(installed=python, toolchain=tools)
    return given(facts, plan(H200, ZERO2, op), H200, **environ)


def built_in(folder: Extensions) -> PreflightInput:
    return given(PreflightFacts(extensions=folder), plan(H200, ZERO2, CPU_ADAM))


def lock(
    op: str = "cpu_adam",
    *,
    age_milliseconds: int = 900_000,
    sees_all: bool = False,
) -> Lock:
    return Lock(
        path=f"/e/{op}/lock",
        op=op,
        age_milliseconds=age_milliseconds,
        sees_all=sees_all,
    )


def locked(lock: Lock) -> Extensions:
    return Extensions(folder="/e", locks=(lock,), built=frozenset({"cpu_adam"}))


def offloading(folder: Folder) -> PreflightInput:
    facts = PreflightFacts(nvme=folder, locks_any_amount=True)
    return given(facts, plan(H200, ZERO3_OFFLOAD, nvme_path="/nvme"))


def on(capability: tuple[int, int], precision: Precision) -> PreflightInput:
    machine = with_capability(capability)
    return given(None, plan(machine, workload=Workload(precision=precision)), machine)


def checkpoints(free_bytes: int) -> PreflightInput:
    return given(PreflightFacts(checkpoints=Folder(path="out", free_bytes=free_bytes)), plan())


def loading(machine: Machine) -> PreflightInput:
    return given(None, plan(machine), machine)


CASES = (
    case("device-map", loaded("auto"), loaded("cuda")),
    case("fsdp", with_fsdp("full_shard"), with_fsdp("")),
    case("missing-argument", needing("--lr=3"), needing("--data", "texts")),
    case("removed-option", removing("--no_cuda"), removing("--no_cuda", release="4.57.3")),
    case("removed-option", removing("--warmup_ratio=1"), removing("--warmup_ratio", own_line=3)),
    case("removed-option", removing("--no_cuda"), removing("--warmup_steps", "no_cuda")),
    case("other-ranks", resuming(8), resuming(4)),
    case("other-stage", resuming_from(saved_at(3)), resuming_from(saved_at(1, 2))),
    case("shards-saved", saving(ZERO3), saving(ZERO2)),
    case("one-rank-call", staged(StageKind.ALONE, ZERO2), staged(StageKind.ALONE_SHARDED, ZERO2)),
    case("shards-read", staged(StageKind.READS, ZERO3), staged(StageKind.READS, ZERO2)),
    case("stage-refused", staged(StageKind.NO_SYNC, ZERO2), staged(StageKind.NO_SYNC, ZERO1)),
    case("optimizers-dropped", handing(), handing(Integration.ACCELERATE)),
    case("lightning-refuses", lightning(devices=8), lightning(devices="auto")),
    case("optimizer-mismatch", preparing(DUMMY), preparing(LION_8BIT)),
    case("sequence-parallel", sharing_sequences(names_positions=False), sharing_sequences()),
    case("float-batches", floating(), floating(Precision.FP32)),
    case("import-missing", importing("my_data"), importing("datasets")),
    case("package-missing", installed(lacks="torch"), installed(lacks="peft")),
    case("old-deepspeed", installed(deepspeed="0.19.7"), installed(deepspeed="0.19.8")),
    case(
        "bad-release",
        bad_release(ZERO2, workload=Workload(accumulation_steps=2), deepspeed="0.18.2"),
        bad_release(ZERO1, deepspeed="0.18.2"),
    ),
    case("other-environment", started_by(own=False), started_by(own=True)),
    case(
        "no-interpreter", started_by(failure="does not exist"), started_by(failure=None, own=True)
    ),
    case("torch-without-cuda", installed(Torch(version="2.13.0+cpu")), installed()),
    case(
        "old-driver",
        given(PreflightFacts(installed=install()), None, replace(H200, cuda_version=(12, 8))),
        given(PreflightFacts(installed=install()), None, replace(H200, cuda_version=(13, 0))),
    ),
    case("busy-gpu", given(None, None, play(recording("h200-x1-busy"))), given()),
    case("half-precision", on((6, 1), Precision.FP16), on((7, 0), Precision.FP16)),
    case(
        "no-compiler",
        building(CPU_ADAM, replace(TOOLS, has_compiler=False)),
        building(CPU_ADAM),
    ),
    case("no-ninja", building(CPU_ADAM, replace(TOOLS, has_ninja=False)), building(CPU_ADAM)),
    case(
        "no-python-headers",
        building(CPU_ADAM, has_headers=False),
        building(CPU_ADAM, has_headers=None),
    ),
    case(
        "no-cuda-toolkit",
        building(FUSED_ADAM, replace(TOOLS, has_nvcc=False)),
        building(CPU_ADAM, replace(TOOLS, has_nvcc=False)),
    ),
    case(
        "other-cuda-toolkit",
        building(FUSED_ADAM, replace(TOOLS, cuda_version=(12, 8))),
        building(FUSED_ADAM, replace(TOOLS, cuda_version=(13, 2))),
    ),
    case(
        "arch-list",
        building(FUSED_ADAM, TORCH_CUDA_ARCH_LIST="9.0a"),
        building(FUSED_ADAM, TORCH_CUDA_ARCH_LIST="9.0+PTX"),
    ),
    case(
        "stale-lock",
        built_in(locked(lock(sees_all=True))),
        built_in(locked(lock("gds", sees_all=True))),
    ),
    case(
        "compiles",
        built_in(Extensions(folder="/e")),
        built_in(Extensions(folder="/e", built=frozenset({"cpu_adam"}))),
    ),
    case(
        "extensions-folder",
        built_in(Extensions(folder="/e", writable=False)),
        built_in(Extensions(folder="/e", writable=None)),
    ),
    case(
        "no-libaio",
        building(ASYNC_IO, replace(TOOLS, has_libaio=False)),
        building(PIN_MEMORY, replace(TOOLS, has_libaio=False)),
    ),
    case(
        "nvme-folder",
        offloading(Folder(path="/nvme", is_folder=True, writable=False)),
        offloading(Folder(path="/nvme")),
    ),
    case(
        "nvme-full",
        offloading(Folder(path="/nvme", is_folder=True, writable=True, free_bytes=GIB)),
        offloading(Folder(path="/nvme", is_folder=True, writable=True, free_bytes=2**45)),
    ),
    case(
        "small-shm",
        given(PreflightFacts(shm_free_bytes=100 * 2**20), None, CPU),
        given(PreflightFacts(shm_free_bytes=200 * 2**20), None, CPU),
    ),
    case(
        "memlock",
        given(None, None, two_nodes(8 * 2**20, INFINIBAND)),
        given(None, None, two_nodes(8 * 2**20)),
    ),
    case("checkpoint-room", checkpoints(90 * 10**9), checkpoints(99 * 10**9)),
    case(
        "host-memory",
        loading(with_host(100 * GIB, 50 * GIB)),
        loading(with_host(100 * GIB, 60 * GIB)),
    ),
    case("slow-by-choice", on((7, 0), Precision.BF16), on((8, 0), Precision.BF16)),
)
