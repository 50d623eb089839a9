"""The constants and terms of the step-time model, its calibration, and the time of a whole run."""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.machine.names import GpuModel, match_models
from zerowiz.core.machine.types import Accelerator, Host, Machine
from zerowiz.core.structs import replace, shows

# Time how fast a host runs Python: what launches a GPU's work is Python.

# Short rounds: the least of them is one that nothing interrupted.
_ROUNDS, _CALLS = 12, 1_000


class _Module:
    """Something to call as torch calls a module."""

    def __init__(self) -> None:
        self.value = 1

    def forward(self, *_args: object, **_keywords: object) -> int:
        """As cheap as a call can be."""
        return self.value


def time_python_call(now: Callable[[], float]) -> float:
    """The time of one call of a method with a keyword, in some 3 ms.

    Python, torch's dispatch and CUDA's launches slow down alike: on two rented hosts with the same
    processor by name, 83 and 92 ns beside 195 and 151 ns, a linear layer's forward and backward
    took 76 and 92 us beside 165 and 151 us (tests/measured/README.md).

    Args:
        now: A clock, in seconds, such as `time.perf_counter`.
    """
    module, least = _Module(), float("inf")
    for _ in range(_ROUNDS):
        begin = now()
        for number in range(_CALLS):
            module.forward(number, keyword=number)
        least = min(least, now() - begin)
    return round(least / _CALLS, 10)


# What the GPUs of a machine compute and move in a second, as far as a table says it.


def find_rates(machine: Machine, table: Sequence[GpuModel]) -> GpuModel | None:
    """The row with the nominal rates of the GPUs of this machine, which no job reaches.

    None where the table has no such GPU, for two kinds, and for slices: they have a part of each.
    """
    sliced = any(gpu.mig_slice is not None for gpu in machine.gpus)
    if machine.accelerator is not Accelerator.CUDA or not machine.is_uniform or sliced:
        return None
    matches = match_models(machine.gpus[0].name, table)
    return matches[0] if len(matches) == 1 else None


# What a step takes its time for, part by part.


class TermKind(StrEnum):
    """What takes the time; other programs read these names."""

    MATRIX_PRODUCTS = "matrix_products"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    """Norms, activations, rotations, sums and the loss: they wait for the GPU's memory."""
    HOST = "host"
    """Python and kernel launches, as far as the GPU waits for them."""
    HOOKS = "hooks"
    """Those of stage 3 around every module, as far as the GPU waits for them."""
    GATHERING = "gathering"
    """Weights that come from other ranks, as far as the GPU waits for them."""
    REDUCTION = "reduction"
    """Gradients that go to other ranks, as far as the GPU waits for them."""
    EXCHANGE = "exchange"
    """Between ranks that share a sequence, around the attention of each layer."""
    OPTIMIZER = "optimizer"
    CPU_OPTIMIZER = "cpu_optimizer"
    PCIE = "pcie"
    """Between GPU and host memory."""
    ALLOCATOR = "allocator"
    """Flushes and retries where memory is nearly full."""


class Term(Struct, frozen=True, kw_only=True):
    """One part of a step."""

    kind: TermKind
    exposed_seconds: float
    """What the step is longer by: less than it takes where something else runs beside it."""
    formula: str


@shows("expected_seconds", "low_seconds", "high_seconds", "tokens_per_s", "measured_steps")
class StepTime(Struct, frozen=True, kw_only=True):
    """How long one optimizer step takes, and what of it is made."""

    terms: tuple[Term, ...]
    expected_seconds: float
    """The sum of the terms."""
    low_seconds: float
    high_seconds: float
    tokens: int
    """Of one optimizer step, over all ranks."""
    images: int | None = None
    """The same of a model of images; None for one of tokens."""
    measured_steps: int = 0
    """How many settings that were measured on this machine have scaled the terms."""

    @property
    def calibrated(self) -> bool:
        """Whether measured times have scaled it."""
        return self.measured_steps > 0

    @property
    def roomy_seconds(self) -> float:
        """What it would take with enough memory: the allocator then flushes nothing."""
        flushes = (t.exposed_seconds for t in self.terms if t.kind is TermKind.ALLOCATOR)
        return self.expected_seconds - sum(flushes)

    @property
    def tokens_per_s(self) -> float:
        """Over all ranks."""
        return self.tokens / self.expected_seconds


class Costs(Struct, frozen=True, kw_only=True):
    """What hardware and software take, beyond the nominal rates of a data sheet."""

    product_fraction: float
    """Of the nominal FLOP/s, reached by a large product of matrices."""
    attention_fraction: float
    """The same of the products of a fused attention kernel, unless its exponentials take longer."""
    masked_attention_fraction: float
    """The same of one that is given a mask."""
    memory_fraction: float
    """Of the nominal memory bandwidth, reached by the optimizer and the copies around it."""
    elementwise_fraction: float
    """The same of the small kernels between the products of matrices."""
    python_call_seconds: float
    """Of the host that the times of Python below are of; those of another one are in proportion."""
    unknown_python_call_seconds: float
    """Of a host that nobody timed: as fast as any of which times were published."""
    slow_python_call_seconds: float
    """Of the slowest host that was measured."""
    shared_python_call_seconds: float
    """What a reading is pulled towards: the mean of hosts that other jobs share."""
    reading_fraction: float
    """The weight of a reading beside that mean, in logarithms: 1 trusts it alone, 0 the mean.

    A reading takes 3 ms, in which other jobs may keep the host busy, or leave it idle.
    """
    host_spread_fraction: float
    """The standard deviation of the logarithm of what such a call takes, from moment to moment."""
    host_seconds: float
    """Of Python and launches, for each operation of forward, forward or backward."""
    checkpoint_seconds: float
    """Of an operation in a checkpointed block, forward and twice as long backward.

    torch calls Python for each tensor that an operation saves, when forward drops it, when backward
    computes it again and when it is read (torch/utils/checkpoint.py, _checkpoint_hook).
    """
    hook_seconds: float
    """Of stage 3's hooks, for each module, forward or backward."""
    gather_seconds: float
    """Of stage 3's own Python for each parameter that it gathers from other ranks, each time."""
    micro_step_seconds: float
    """Of a micro-step's forward and backward, whatever the model is: each has half of it."""
    gradient_seconds: float
    """Of a hook of stages 1 and 2, for each tensor that trains, in each backward."""
    step_seconds: float
    """Of an optimizer step's own launches, for each tensor that trains."""
    fixed_seconds: float
    """Of an optimizer step, whatever the model is: clipping, the scheduler, the batch."""
    nvlink_fraction: float
    """Of the nominal link, reached by a large collective."""
    pcie_link_fraction: float
    """The same between GPUs without NVLink, through the host."""
    network_fraction: float
    """The same between nodes."""
    contention_fraction: float
    """Of the GPU's multiprocessors, taken by a collective that runs beside its own work."""
    collective_seconds: float
    """To start one collective."""
    queued_seconds: float
    """To start one that the host queued while others before it ran."""
    pcie_fraction: float
    """Of the nominal PCIe rate, reached by a copy between GPU and pinned host memory."""
    pageable_bytes_per_s: float
    """That a copy to the GPU moves, of what the host casts first into memory that is not pinned."""
    core_bytes_per_s: float
    """That one CPU core moves while it steps Adam."""
    host_bytes_per_s: float
    """That all cores of a node move at most."""
    unknown_cores: int
    """For each GPU, of a host that nobody described."""
    tight_fraction: float
    """By which steps are longer near the limit of memory, where the allocator flushes."""


_OF_THE_HOST = (
    *("host_seconds", "checkpoint_seconds", "hook_seconds", "gather_seconds", "micro_step_seconds"),
    *("gradient_seconds", "step_seconds", "fixed_seconds"),
)


def _call_seconds(costs: Costs, read: float | None) -> float:
    """What a call takes on average beside a step, in seconds: the best guess from one reading.

    Theory: with normal logarithms, of hosts and of the moments of one host, the expected mean of a
    host lies between that of all hosts and its reading, weighted by the two variances.
    """
    if read is None:
        return costs.unknown_python_call_seconds
    usual, weight = costs.shared_python_call_seconds, costs.reading_fraction
    return math.exp((1 - weight) * math.log(usual) + weight * math.log(read))


def memory_rate_on(costs: Costs, rates: GpuModel) -> float:
    """The bytes that a kernel which only moves bytes really moves in a second."""
    return rates.memory_bytes_per_s * costs.memory_fraction


def on_host(costs: Costs, host: Host) -> Costs:
    """The constants with the times of this host."""
    factor = _call_seconds(costs, host.python_call_seconds) / costs.python_call_seconds
    return replace(costs, **{name: factor * getattr(costs, name) for name in _OF_THE_HOST})


# What has no source of its own was fitted by `python tests/speed/fit.py --fit --free-running`, on
# the fitted side of tests/measured/times and regret: nothing was synchronised inside them.
COSTS = Costs(
    product_fraction=0.70,
    attention_fraction=0.72,
    masked_attention_fraction=0.30,
    memory_fraction=0.52,
    elementwise_fraction=0.75,
    # tests/measured/README.md: of the rented host beside one H200.
    python_call_seconds=87e-9,
    # Fitted on the times of qwen at stage 3 in public_times.json, where Python decides: servers
    # that are not shared run it faster.
    unknown_python_call_seconds=60e-9,
    # regret/2026-11-h100-g.jsonl: the geometric mean of the 15 readings of that lease. Those of 30
    # leases lie between 87 and 193 ns.
    slow_python_call_seconds=193e-9,
    # The geometric mean of the readings beside the fitted steps. One reading differs from others of
    # its lease by 27 % (a standard deviation), and leases from each other by nearly as much: by
    # these variances alone it would weigh 0.4. `reading_fraction` is fitted.
    shared_python_call_seconds=143e-9,
    reading_fraction=0.46,
    # tests/measured/regret: 24 readings in one lease of an H200, 96 to 215 ns.
    host_spread_fraction=0.22,
    host_seconds=14.8e-6,
    checkpoint_seconds=2.2e-6,
    hook_seconds=325e-6,
    # Not fitted: the steps of two H100s agree with anything up to 100 us, and the published ones of
    # two and more A100s and A800s (public_times.json) with 60 to 200 us.
    gather_seconds=100e-6,
    micro_step_seconds=3.1e-3,
    gradient_seconds=130e-6,
    step_seconds=54e-6,
    fixed_seconds=6.4e-3,
    # tests/measured/links.json: 1 GiB over NVLink 0.58 (reduce-scatter) to 0.72 (all-reduce),
    # with NCCL_P2P_DISABLE=1 0.40 to 0.46. Between nodes nothing was measured.
    nvlink_fraction=0.60,
    pcie_link_fraction=0.42,
    network_fraction=0.60,
    # links.json: 24 channels, each a block of one multiprocessor; an H100 or H200 has 132.
    contention_fraction=0.18,
    # links.json, 64 MiB over NVLink against 1 GiB: 60 us longer than the rate alone.
    collective_seconds=50e-6,
    # In 3 buckets or in 248, without overlap_comm, steps of 2 H100s differ by 1 ms, and scatter
    # by 3 ms (2026-11-h100.jsonl: j1-001 and 006; without peer-to-peer j1-017 and 022). More GPUs
    # were not measured.
    queued_seconds=10e-6,
    # Not fitted: what copies from pinned memory usually reach.
    pcie_fraction=0.70,
    # tests/measured/regret: steps of stage 3 with the optimizer alone offloaded, 1.2B to 3.8B
    # parameters a rank, took 0.2 to 0.42 s per 10^9 parameters longer than the rest explains.
    pageable_bytes_per_s=5.0e9,
    core_bytes_per_s=10.8e9,
    # Not fitted: twelve channels of DDR5-4800 have 460 GB/s, and half of that is usual.
    host_bytes_per_s=200e9,
    # The cores of the measured machines, by their GPUs.
    unknown_cores=16,
    # 2026-11-capped.jsonl: steady steps near the limit took 1.0 to 1.7 times as long.
    tight_fraction=0.15,
)

# Learn from the steps that were measured on one machine.

# How many measured steps it takes to move a factor half of the way: a prior of a fifth, in
# logarithms, against a measured step that repeats within a fifth. Chosen on the fitted side of
# tests/measured, each machine's steps predicted from its others: trusting steps more was worse.
_PRIOR, _REPEAT = 0.2, 0.2
_CALIBRATION_ROUNDS, _SETTLED = 20, 1e-6


class MeasuredStep(Struct, frozen=True, kw_only=True):
    """What was predicted of a setting without calibration, and what it really took."""

    terms: tuple[Term, ...]
    measured_seconds: float


class Calibration(Struct, frozen=True, kw_only=True):
    """Factors on the terms of a prediction, of one machine."""

    factors: Mapping[TermKind, float]
    """One that is not here is 1."""
    measured_steps: int
    """How many settings were measured."""
    python_call_seconds: float | None = None
    """The mean of what was read of the host beside those steps; None where nobody read it."""

    def apply(self, term: Term) -> Term:
        """The term as this machine takes it."""
        factor = self.factors.get(term.kind, 1.0)
        return replace(term, exposed_seconds=term.exposed_seconds * factor)

    def describe(self, host: Host) -> Host:
        """The host, as fast as it was on average: what is read in one moment may be off by two."""
        call_seconds = self.python_call_seconds or host.python_call_seconds
        return replace(host, python_call_seconds=call_seconds)


def calibrate(
    measured: Sequence[MeasuredStep], python_call_seconds: float | None = None
) -> Calibration | None:
    """The factors that explain these steps with the least change; None where none was measured.

    Theory: the logarithm of each factor has a normal prior around 0, and each measured time is off
    by a repeat's spread. So few steps move the factors little, and one kind of term that no step
    depends on stays as it is. Solved by Gauss and Newton.

    Args:
        measured: Steps of one machine.
        python_call_seconds: Of its host, on average: what they were predicted with.
    """
    steps = [step for step in measured if step.measured_seconds > 0]
    if not steps:
        return None
    logs = {term.kind: 0.0 for step in steps for term in step.terms}
    for _ in range(_CALIBRATION_ROUNDS):
        before, logs = logs, _fit(steps, logs)
        if all(abs(logs[kind] - before[kind]) < _SETTLED for kind in logs):
            break
    return Calibration(
        factors={kind: math.exp(log) for kind, log in logs.items()},
        measured_steps=len(steps),
        python_call_seconds=python_call_seconds,
    )


def _fit(steps: Sequence[MeasuredStep], around: Mapping[TermKind, float]) -> dict[TermKind, float]:
    """The logarithms that explain the steps, where their times are linear around these ones.

    Recursive least squares: each step moves what is uncertain, and makes it more certain.
    """
    logs = dict.fromkeys(around, 0.0)
    variance = {(a, b): _PRIOR**2 if a is b else 0.0 for a in around for b in around}
    for step in steps:
        seconds = dict.fromkeys(around, 0.0)
        for term in step.terms:
            seconds[term.kind] += term.exposed_seconds * math.exp(around[term.kind])
        total = sum(seconds.values())
        shares = {kind: part / total for kind, part in seconds.items()}
        moves = {a: sum(variance[a, b] * shares[b] for b in shares) for a in shares}
        explained = sum(shares[kind] * (logs[kind] - around[kind]) for kind in shares)
        missing = math.log(step.measured_seconds / total) - explained
        doubt = _REPEAT**2 + sum(shares[kind] * moves[kind] for kind in shares)
        logs = {kind: logs[kind] + moves[kind] * missing / doubt for kind in logs}
        variance = {(a, b): v - moves[a] * moves[b] / doubt for (a, b), v in variance.items()}
    return logs
