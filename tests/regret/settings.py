"""The settings of a job that are measured: the near ones, the rivals', and some by a hash."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from measured.trials import OptimizerKernel, Trial, stepper_for
from msgspec import Struct
from regret.workloads import RegretJob

from zerowiz.core.decision.evaluate import StrategyEstimate, evaluate
from zerowiz.core.decision.flowchart import Constraints, decide
from zerowiz.core.decision.job import Job, Objective, OpenSettings
from zerowiz.core.decision.open_settings import search
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.strategies import STRATEGIES, ZERO2_OFFLOAD, ZERO3_OFFLOAD
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload

CHOICE, FLOWCHART = "choice", "flowchart at micro-batch 1"
HF_ZERO2, HF_ZERO3 = "ds_config_zero2.json", "ds_config_zero3.json"
RIVALS = (FLOWCHART, HF_ZERO2, HF_ZERO3)
NEAR, DRAWN = "within 1.5 times", "drawn"
# Predicted to take no longer than this many times the fastest.
_NEAR = 1.5
_DRAWN = 3
LEAST = 6
"""So many settings of each job are measured at least."""
# transformers/training_args.py: per_device_train_batch_size.
_TRAINERS_MICRO_BATCH = 8


class TriedSetting(Struct, frozen=True, kw_only=True):
    """One way to run a job."""

    id: str
    """Names the setting, so that a row of it stays one when predictions change."""
    roles: tuple[str, ...]
    """Why it is measured."""
    trial: Trial
    predicted_seconds: float | None
    runs: bool
    """Whether it is predicted to fit."""

    @property
    def is_fresh(self) -> bool:
        """Whether a process of its own runs it: there its memory is as a job's is."""
        return not self.runs or bool({CHOICE, *RIVALS}.intersection(self.roles))


class Way(Struct, frozen=True, kw_only=True):
    """A strategy with a split of the batch."""

    evaluated: StrategyEstimate
    workload: Workload

    @property
    def strategy(self) -> StrategyRow:
        """The strategy."""
        return self.evaluated.strategy

    @property
    def id(self) -> str:
        """Such as `zero2-mb4-ckpt`."""
        recomputes = "-ckpt" if self.workload.gradient_checkpointing else ""
        return f"{self.strategy.name}-mb{self.workload.micro_batch}{recomputes}"

    @property
    def seconds(self) -> float:
        """As predicted; what is not predicted comes last."""
        time = self.evaluated.step_time
        return inf if time is None else time.expected_seconds


def every_way(job: Job) -> list[Way]:
    """Every strategy with every micro-batch that is a power of 2, with checkpointing and without.

    All of them are evaluated, one by one: a search that leaves some out is held against this.
    """
    each_rank = job.workload.micro_batch * job.workload.accumulation_steps
    sizes = [2**n for n in range(each_rank.bit_length()) if each_rank % 2**n == 0]
    steps = [
        replace(
            job.workload,
            micro_batch=size,
            accumulation_steps=each_rank // size,
            gradient_checkpointing=recomputes,
        )
        for size in sizes
        for recomputes in (False, True)
    ]
    return [
        Way(workload=step, evaluated=evaluate(replace(job, workload=step), strategy))
        for step in steps
        for strategy in STRATEGIES
    ]


def settings_of(job: RegretJob, plan_input: Job) -> tuple[TriedSetting, ...]:
    """What is measured of a job, the choice first, then the fastest as predicted."""
    ways = {way.id: way for way in every_way(plan_input)}
    roles: dict[str, list[str]] = {}
    for role, found in _roles(job, plan_input, list(ways.values())):
        ways.setdefault(found.id, found)
        roles.setdefault(found.id, []).append(role)
    settings = [
        TriedSetting(
            id=name,
            roles=tuple(roles[name]),
            trial=trial_of(job, ways[name].strategy, ways[name].workload, name),
            predicted_seconds=None if ways[name].seconds == inf else ways[name].seconds,
            runs=ways[name].evaluated.runs,
        )
        for name in roles
    ]
    settings.sort(key=lambda s: (CHOICE not in s.roles, s.predicted_seconds or inf))
    return (*settings, *_hugging_face(job, plan_input))


def _roles(job: RegretJob, plan_input: Job, ways: Sequence[Way]) -> Iterator[tuple[str, Way]]:
    chosen = choose(plan_input)
    if chosen is not None:
        yield CHOICE, chosen
    for recomputes in (False, True):
        step = replace(plan_input.workload, gradient_checkpointing=recomputes)
        decision = decide(replace(plan_input, workload=step), Constraints())
        if decision.chosen is not None:
            yield FLOWCHART, Way(workload=step, evaluated=decision.chosen)
            break
    running = sorted((way for way in ways if way.evaluated.runs), key=lambda way: way.seconds)
    fastest = running[0].seconds if running else inf
    near = [way for way in running if way.seconds <= _NEAR * fastest and way.seconds < inf]
    for way in near:
        yield NEAR, way
    others = sorted((way for way in running if way not in near), key=lambda way: _draw(job, way))
    known = len({*(way.id for way in near), *(way.id for way in (chosen,) if way is not None)})
    for way in others[: max(_DRAWN, LEAST - known)]:
        yield DRAWN, way


def _draw(job: RegretJob, way: Way) -> bytes:
    return hashlib.sha256(f"{job.id}/{way.id}".encode()).digest()


def choose(job: Job) -> Way | None:
    """What `plan --objective fastest` takes, with the batch and the checkpointing open."""
    freedom = OpenSettings(split=True, checkpointing=(False, True))
    found = search(job, Constraints(), freedom, Objective.FASTEST)
    if found.choice is None:
        return None
    return Way(workload=found.choice.workload, evaluated=found.choice.evaluated)


def trial_of(job: RegretJob, strategy: StrategyRow, workload: Workload, name: str) -> Trial:
    return Trial(
        id=f"{job.id}/{name}",
        model=job.model,
        gpus=job.gpus,
        stage=strategy.stage,
        offload=strategy.offload,
        kernel=stepper_for(workload.optimizer, strategy.offload),
        workload=workload,
        memory_cap_bytes=job.cap_bytes,
        nccl_p2p=job.nccl_p2p,
    )


def _of_zero2(_hidden: int) -> Mapping[str, object]:
    # transformers, tests/deepspeed/ds_config_zero2.json at 9490c0a; `auto` has no part in it.
    return {
        "allgather_bucket_size": 200_000_000,
        "reduce_bucket_size": 200_000_000,
        "overlap_comm": True,
        "contiguous_gradients": True,
    }


def _of_zero3(hidden: int) -> Mapping[str, object]:
    # transformers, tests/deepspeed/ds_config_zero3.json at e7a1419; what is `auto` there is what
    # integrations/deepspeed.py (trainer_config_finalize) fills in.
    return {
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 100_000_000_000_000,
        "reduce_bucket_size": hidden * hidden,
        "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
        "stage3_param_persistence_threshold": 10 * hidden,
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
    }


_EXAMPLES = {HF_ZERO2: (ZERO2_OFFLOAD, _of_zero2), HF_ZERO3: (ZERO3_OFFLOAD, _of_zero3)}


def _hugging_face(job: RegretJob, plan_input: Job) -> Iterator[TriedSetting]:
    """The Trainer's examples as they stand, both with offload, at its default micro-batch.

    Neither knows checkpointing, so none is on; where the global batch is smaller, so is theirs.
    """
    step = plan_input.workload
    each_rank = step.micro_batch * step.accumulation_steps
    size = min(_TRAINERS_MICRO_BATCH, each_rank)
    workload = replace(step, micro_batch=size, accumulation_steps=each_rank // size)
    for name, (strategy, section) in _EXAMPLES.items():
        evaluated = evaluate(replace(plan_input, workload=workload), strategy)
        time = evaluated.step_time
        setting_id = f"hf-{strategy.name}-mb{size}"
        trial = trial_of(job, strategy, workload, setting_id)
        yield TriedSetting(
            id=setting_id,
            roles=(name,),
            trial=replace(
                trial,
                kernel=OptimizerKernel.CPU_ADAM,
                zero_optimization=section(plan_input.model.architecture.hidden_size),
            ),
            predicted_seconds=None if time is None else time.expected_seconds,
            runs=evaluated.runs,
        )
