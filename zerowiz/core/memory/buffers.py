"""Size DeepSpeed's buffers, and the room that torch's allocator and vLLM leave beside them."""

from collections.abc import Mapping

from msgspec import Struct

from zerowiz.core.machine.types import Machine
from zerowiz.core.model.types import Model
from zerowiz.core.strategy_types import BufferSizes, Strategy
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload


class NvmeBuffers(Struct, frozen=True, kw_only=True):
    """What passes through the host to NVMe; counts are elements, not bytes.

    The defaults are DeepSpeed's own (runtime/zero/offload_config.py, 0.19.8).
    """

    optimizer_count: int = 4
    """Buffers of a sub-group; 0 where the optimizer is not on NVMe."""
    param_count: int = 5
    """Buffers of a parameter; 0 where the parameters are not on NVMe."""
    param_size: int = 100_000_000
    max_in_cpu: int = 1_000_000_000
    """So many parameters stay in host memory all the same."""


class Buffers(Struct, frozen=True, kw_only=True):
    """The `zero_optimization` keys that cost memory; counts are elements, not bytes.

    The defaults are DeepSpeed's own (runtime/zero/config.py, 0.19.8).
    """

    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool = False
    """Stages 1 and 2 only: a second bucket."""
    contiguous_gradients: bool = True
    """Stages 1 and 2 without offload: gradients wait in the bucket, not each by itself."""
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    stage3_max_live_parameters: int = 1_000_000_000
    """As many may be kept until they are used again (`stage3_max_reuse_distance`)."""
    sub_group_size: int = 1_000_000_000
    hpz_partition_size: int = 1
    """Stage 3: ranks that share a second copy of the parameters; 1 for no such copy."""
    on_nvme: bool = False
    """Stage 3: what is offloaded lies on NVMe, and passes through buffers of the host."""
    nvme: NvmeBuffers | None = None
    """Those of a person's own config; None where zerowiz fits them."""
    keeps_optimizer: bool = False
    """Stage 3 with offload: the optimizer stays on the GPU, the parameters alone are offloaded."""
    keeps_gradients: bool = False
    """Stage 1 with offload, which is else as stage 2: all gradients wait until backward is over."""

    @property
    def buckets(self) -> int:
        """How many buckets stages 1 and 2 allocate."""
        return 2 if self.overlap_comm else 1


DEEPSPEED_DEFAULTS = Buffers()

# Theory. A buffer trades memory for time, so a strategy has a list of sizes, the fastest first, and
# the first that leaves room is taken. Measured on 2 H100s with NVLink and without peer-to-peer, in
# seconds per step (tests/measured/2026-11-h100.jsonl):
# - stages 1 and 2: buckets of 5 M to 500 M elements take the same time on both links; overlap_comm
#   takes 1 to 3 % less with NVLink, 9 to 14 % less without (j1-001 to j1-007, j1-017 to j1-023;
#   at accumulation 4 16 %: j2-016, j2-017);
# - stage 3: 200 M elements instead of 25 M take 6 to 7 % less with NVLink, 18 to 21 % less without
#   (j1-009, j1-010, j1-025, j1-026; an 8B model: j1-015, j1-016, j1-031, j1-032);
# - stage 3: 100 M live parameters instead of 1000 M take up to 16 % more of a 1B model's time and
#   up to 3 % more of an 8B model's (j1-009 to j1-015, j1-025 to j1-031);
# - stage 3: sub-groups of 100 M elements instead of 1000 M hold a tenth, and take 15 % less of an
#   8B model's time, 5 % more of a 1B model's (j2-001 to j2-005, j1-010).
# Repeats of stage 3 differ by up to a tenth. 500 M elements gain nothing over 200 M (j2-006,
# j2-007, j2-011, j2-012), and at stage 1 overlap_comm does what it does at stage 2 (j2-009 to
# j2-017). The link changes how much there is to win, not the order, so the room decides.
# What overlap_comm and sub-groups are worth was not measured with the optimizer on the host.

_LEAN = BufferSizes(least_bucket=5_000_000, most_bucket=5_000_000)
LEAN_BUFFERS = (_LEAN,)
"""For what has one bucket that nothing waits for."""
# torch's DDP takes 25 MB (torch/nn/parallel/distributed.py); above 200 M nothing is hidden.
_FAST = BufferSizes(least_bucket=25_000_000, most_bucket=200_000_000)
REDUCING_BUFFERS = (replace(_FAST, overlap_comm=True), _LEAN)
"""For stages that reduce gradients, and gather no parameters."""
# Stage 1 reduces gradients only when backward is over, and holds all of them until then, unless
# communication overlaps (stage_1_and_2.py, process_gradients).
OVERLAPPED_BUFFERS = tuple(replace(sizes, overlap_comm=True) for sizes in REDUCING_BUFFERS)
REDUCING_OFFLOAD_BUFFERS = (_FAST, _LEAN)
GATHERING_OFFLOAD_BUFFERS = (
    BufferSizes(least_bucket=200_000_000, most_bucket=200_000_000),
    BufferSizes(least_bucket=25_000_000, most_bucket=25_000_000),
    BufferSizes(
        least_bucket=25_000_000, most_bucket=25_000_000, stage3_max_live_parameters=100_000_000
    ),
)
GATHERING_BUFFERS = tuple(
    replace(sizes, sub_group_size=100_000_000) for sizes in GATHERING_OFFLOAD_BUFFERS
)
"""For stages that gather parameters."""


def fit_buffers(model: Model, trainable_params: int, strategy: Strategy) -> tuple[Buffers, ...]:
    """The sizes to try for this model, the fastest first, the leanest last.

    DeepSpeed allocates a bucket in full however small the model is, so it never exceeds the
    trainable parameters; `allreduce` wants an even count.
    """
    hidden_size = model.architecture.hidden_size
    # transformers/integrations/deepspeed.py, trainer_config_finalize: h^2, 0.9 h^2 and 10 h.
    prefetched, threshold = max(1, hidden_size**2 * 9 // 10), 10 * hidden_size
    defaults, fitted = DEEPSPEED_DEFAULTS, []
    for sizes in strategy.buffer_sizes:
        bucket = min(max(hidden_size**2, sizes.least_bucket), sizes.most_bucket, trainable_params)
        live = sizes.stage3_max_live_parameters or defaults.stage3_max_live_parameters
        fitted.append(
            Buffers(
                reduce_bucket_size=bucket + bucket % 2,
                overlap_comm=sizes.overlap_comm,
                stage3_prefetch_bucket_size=prefetched,
                stage3_param_persistence_threshold=threshold,
                stage3_max_live_parameters=live,
                sub_group_size=sizes.sub_group_size or defaults.sub_group_size,
            )
        )
    return tuple(dict.fromkeys(fitted))


# Compute what a job takes on a device beyond its tensors, and which margin it needs.
#
# Measured on H200s (tests/measured), six models at four stages under caps: with
# expandable_segments at 1.01, 1.02, 1.03 and 1.07 x their allocated peak, without it at 1.07 and
# 1.16 x (g1 and g2 runs); Llama-2-7B at 1.00, 1.03 and 1.10 x (d4-015 to d4-026).


class Margin(Struct, frozen=True, kw_only=True):
    """Fractions of the predicted peak, above it."""

    slack_fraction: float
    """With less headroom than this a run runs out of memory."""
    sure_fraction: float
    """With this much headroom none ran out of memory."""
    tight_fraction: float
    """With this much headroom it runs as fast as with all memory."""


# With expandable segments all ran out at 1.00 x (two runs), two of 24 at 1.01 x and none above;
# steady steps were more than 5 % slower in 14 of 24 at 1.02 x, in 14 at 1.07 x and, at ZeRO-3, even
# at 1.10 x. Without them one of two ran out at 1.03 x, none of one at 1.06 x, 14 of 24 at 1.07 x,
# two of 24 at 1.16 x. Neither band is wider than a tenth of a budget in which the run starts: 0.100
# and 0.105 of the peak, which is at most 0.995 and 0.948 of it.
# Sure is asked of the upper bound of a prediction, which is 0.8 % above it at least.
_EXPANDABLE = Margin(slack_fraction=0.005, sure_fraction=0.005, tight_fraction=0.105)
_FIXED = Margin(slack_fraction=0.055, sure_fraction=0.16, tight_fraction=0.16)

# CUDA context, library handles, and NCCL where there are other ranks: the most of
# device_used_outside_allocator_bytes in tests/measured. hpZ opens groups of its own (h1-027).
_OUTSIDE_ALONE_BYTES = 1_810_000_000
_OUTSIDE_BYTES = 2_250_000_000
_HPZ_GROUPS_BYTES = 510_000_000
# On the CPU accelerator: the resident interpreter with torch, DeepSpeed and transformers, before
# the model; 371 MB under templates/train_deepspeed.py, 353 MB under train_hf.py without the engine.
_CPU_OUTSIDE_BYTES = 400_000_000


def margin(*, expandable_segments: bool) -> Margin:
    """How close to the budget a run may come under this allocator."""
    return _EXPANDABLE if expandable_segments else _FIXED


def outside_bytes(machine: Machine, buffers: Buffers) -> int:
    """What a rank takes on its device outside torch's allocator."""
    if machine.accelerator.row.on_host:
        return _CPU_OUTSIDE_BYTES
    if machine.world_size == 1:
        return _OUTSIDE_ALONE_BYTES
    return _OUTSIDE_BYTES + (_HPZ_GROUPS_BYTES if buffers.hpz_partition_size > 1 else 0)


ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
"""The variable of torch's allocator on CUDA, by the name that every release reads."""


def shares_with_sleeping_vllm(workload: Workload) -> bool:
    """Whether a vLLM that sleeps while the step trains is in the same process."""
    return bool(workload.vllm_memory_fraction) and workload.vllm_sleeps


def without_expansion(environ: Mapping[str, str]) -> dict[str, str]:
    """What keeps expandable_segments off, where the caller's environment does not say.

    vLLM's sleep mode has a memory pool that refuses to start with them (vLLM 0.8 to 0.20,
    device_allocator/cumem.py; later releases switch them off for that pool).
    """
    if "PYTORCH_ALLOC_CONF" in environ or ALLOCATOR in environ:
        return {}
    return {ALLOCATOR: "expandable_segments:False"}


def expands_segments(environ: Mapping[str, str]) -> bool:
    """Whether a job started here gets expandable_segments: the launch sets it unless the user did.

    Source: torch's notes on CUDA semantics; `PYTORCH_ALLOC_CONF` wins where both are set.
    """
    names = ("PYTORCH_ALLOC_CONF", ALLOCATOR)
    setting = next((environ[name] for name in names if name in environ), None)
    return setting is None or "expandable_segments:true" in setting.replace(" ", "").lower()
