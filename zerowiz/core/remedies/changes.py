"""The single changes of a job that may make it fit, as a table: each yields the mildest first."""

from collections.abc import Callable, Iterator

from zerowiz.core.decision.flowchart import Constraints, OffloadChoice
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.network import Network, NetworkKind
from zerowiz.core.machine.types import Accelerator, pick_gpus
from zerowiz.core.remedies.remedy import Attempt
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import (
    Accounting,
    Attention,
    Loss,
    Method,
    Precision,
    StateDtype,
    Trainer,
)
from zerowiz.errors import UsageError

Kind = Callable[[PlanInput, Constraints], Iterator[Attempt]]

# NVIDIA's reference designs for H100 have one NDR adapter, 400 Gb/s, for each GPU; one is enough to
# count as fast.
_INFINIBAND = "infiniband:400Gb/s"
_INFINIBAND_BYTES_PER_S = 50_000_000_000
_LEAST_TOKENS = 256
# Each smaller batch is an attempt: up to here every one, beyond it halves.
_EACH_EVAL_BATCH = 1024
# Below this part of the others' free memory, another job holds the rest, and not a display.
_BUSY_FRACTION = 0.9


def _step(job: PlanInput, constraints: Constraints, **settings: object) -> Attempt:
    """The job with other settings of its training step.

    Raises:
        UsageError: The step cannot have them.
    """
    change = {name: value for name, value in settings.items() if isinstance(value, int | str)}
    workload = replace(job.workload, **settings)  # type: ignore[arg-type]
    return Attempt(
        change={n: str(v) if isinstance(v, str) else v for n, v in change.items()},
        job=replace(job, workload=workload),
        constraints=constraints,
    )


def state_network(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """The statement that a network of which nothing is known is InfiniBand."""
    machine = job.machine
    if machine.nodes == 1 or machine.network.kind is not NetworkKind.UNKNOWN:
        return
    if machine.network.nics:
        return
    network = Network(kind=NetworkKind.INFINIBAND, bytes_per_s=_INFINIBAND_BYTES_PER_S)
    changed = replace(job, machine=replace(machine, network=network))
    yield Attempt(change={"interconnect": _INFINIBAND}, job=changed, constraints=constraints)


def leave_busy_gpus(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """The GPUs of one node without the fullest of them, as long as one has clearly less room."""
    gpus = job.machine.gpus
    free = [gpu.free_bytes for gpu in gpus if gpu.free_bytes is not None]
    sliced = any(gpu.mig_slice is not None for gpu in gpus)
    if job.machine.nodes > 1 or job.machine.lives_on_host or sliced or len(free) < len(gpus):
        return
    for least_bytes in sorted(set(free))[1:]:
        chosen = [gpu for gpu in gpus if (gpu.free_bytes or 0) >= least_bytes]
        if min(free) < _BUSY_FRACTION * least_bytes:
            machine = pick_gpus(job.machine, chosen)
            yield Attempt(
                change={"gpus": ",".join(gpu.label for gpu in chosen)},
                # What was seen with all of them says nothing of fewer.
                job=replace(job, machine=machine, calibration=None, ran_out=()),
                constraints=constraints,
            )


def use_bf16(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """Weights in bf16 instead of fp32."""
    w = job.workload
    if w.precision is Precision.FP32 and w.torch_autocast is None and job.machine.takes_bf16:
        yield _step(job, constraints, precision=Precision.BF16)


def use_sdpa(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """A fused attention kernel, which keeps no scores."""
    if job.workload.attention is Attention.EAGER and job.own_trace is None:
        yield _step(job, constraints, attention=Attention.SDPA)


def cut_loss(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """A loss that never holds all logits, which grow with the sequence and the vocabulary."""
    w = job.workload
    by_rule = job.accounting is Accounting.TEXTBOOK
    if w.loss is not Loss.PLAIN or w.trainer is not Trainer.SFT or by_rule:
        return
    # Liger's kernels are Triton's, which has no driver for a CPU.
    on_gpus = job.machine.accelerator is Accelerator.CUDA
    for loss in (Loss.LIGER, Loss.CHUNKED) if on_gpus else (Loss.CHUNKED,):
        try:
            yield _step(job, constraints, loss=loss)
        except UsageError:
            # It is not counted for this model.
            continue


def evaluate_fewer(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """Fewer sequences evaluated at a time, a very large batch by halves; training is as it was."""
    sequences = job.workload.eval_batch
    while sequences > _EACH_EVAL_BATCH:
        sequences //= 2
        yield _step(job, constraints, eval_batch=sequences)
    for fewer in range(sequences - 1, 0, -1):
        yield _step(job, constraints, eval_batch=fewer)


def recompute(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """Gradient checkpointing."""
    if not job.workload.gradient_checkpointing:
        yield _step(job, constraints, gradient_checkpointing=True)


def split_batch(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """A part of the micro-batch at a time, in as many more micro-steps: the same global batch."""
    batch, steps = job.workload.micro_batch, job.workload.accumulation_steps
    for parts in range(2, batch + 1):
        if batch % parts == 0:
            yield _step(
                job, constraints, micro_batch=batch // parts, accumulation_steps=steps * parts
            )


def unpin_stage(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """Any stage, where one was set; then any offload too, where that was set."""
    if constraints.stage is None:
        return
    free = replace(constraints, stage=None)
    yield Attempt(change={"stage": "auto"}, job=job, constraints=free)
    if constraints.offload not in {None, OffloadChoice.AUTO}:
        free = replace(free, offload=OffloadChoice.AUTO)
        yield Attempt(change={"stage": "auto", "offload": "auto"}, job=job, constraints=free)


def shard_one_gpu(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """ZeRO-3 on one GPU: it shards nothing there, and holds fewer copies than stage 0."""
    if job.machine.world_size == 1 and constraints.free:
        pinned = replace(constraints, stage=3)
        yield Attempt(change={"stage": "3"}, job=job, constraints=pinned)


def allow_offload(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """Optimizer states and weights in host memory, where that was forbidden or is not asked for."""
    if constraints.offload is not OffloadChoice.AUTO:
        free = replace(constraints, offload=OffloadChoice.AUTO)
        yield Attempt(change={"offload": "auto"}, job=job, constraints=free)


def allow_slow(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """ZeRO-3 over a slow link."""
    if not constraints.allow_slow:
        free = replace(constraints, allow_slow=True)
        yield Attempt(change={"allow_slow": True}, job=job, constraints=free)


def halve_states(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """Optimizer states in bf16."""
    if job.workload.precision is Precision.BF16 and job.state_dtype is not StateDtype.BF16:
        changed = replace(job, state_dtype=StateDtype.BF16)
        yield Attempt(
            change={"optimizer_state_dtype": "bf16"}, job=changed, constraints=constraints
        )


def shorten(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """Shorter sequences, by halves; completions and images have a length of their own."""
    w = job.workload
    tokens = w.sequence_tokens
    is_fixed = w.trainer.generates or job.model.architecture.reads_images
    while tokens // 2 >= _LEAST_TOKENS and not is_fixed:
        tokens //= 2
        yield _step(job, constraints, sequence_tokens=tokens)


def train_adapters(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """Adapters alone."""
    if job.accounting is not Accounting.TEXTBOOK and job.workload.method is Method.FULL:
        yield _step(job, constraints, method=Method.LORA)


def quantize(job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
    """Adapters on weights in 4 bits, which no CPU has."""
    by_rule = job.accounting is Accounting.TEXTBOOK
    on_cpu = job.machine.accelerator is Accelerator.CPU
    if not (by_rule or on_cpu or job.workload.method is Method.QLORA):
        yield _step(job, constraints, method=Method.QLORA)


# The same result, later.
KEEPING: tuple[Kind, ...] = (
    state_network,
    leave_busy_gpus,
    unpin_stage,
    use_sdpa,
    evaluate_fewer,
    cut_loss,
    split_batch,
    recompute,
    shard_one_gpu,
    allow_offload,
    allow_slow,
)
# Nearly the same result.
ROUNDING: tuple[Kind, ...] = (use_bf16, halve_states)
PAST_SLOW_LINK: tuple[Kind, ...] = (state_network, allow_offload, allow_slow)
