"""Size DeepSpeed's communication buffers, in elements, as its config counts them."""

from dataclasses import dataclass

from zerowiz.core.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffers:
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
    sub_group_size: int = 1_000_000_000
    hpz_partition_size: int = 1
    """Stage 3: ranks that share a second copy of the parameters; 1 for no such copy."""


DEEPSPEED_DEFAULTS = Buffers()

# A bucket below 25 M elements is bound by latency, not bandwidth (torch DDP's own choice is
# 25 MB, torch/nn/parallel/distributed.py); above 200 M it costs memory and hides nothing.
_SMALLEST_BUCKET, _LARGEST_BUCKET = 25_000_000, 200_000_000


def fit_buffers(model: Model, trainable_params: int) -> Buffers:
    """Buffers for this model: h squared like Hugging Face's "auto", within sane bounds.

    DeepSpeed allocates a bucket in full however small the model is, so it never exceeds the
    trainable parameters; `allreduce` wants an even count. max_live stays at its default: at
    exactly N a small model is gathered 1.2 times where the default gathers it once.
    """
    hidden_size = model.architecture.hidden_size
    bucket = min(max(hidden_size**2, _SMALLEST_BUCKET), _LARGEST_BUCKET, trainable_params)
    return Buffers(
        reduce_bucket_size=bucket + bucket % 2,
        # transformers/integrations/deepspeed.py, trainer_config_finalize: 0.9 h^2 and 10 h.
        stage3_prefetch_bucket_size=max(1, hidden_size**2 * 9 // 10),
        stage3_param_persistence_threshold=10 * hidden_size,
    )
