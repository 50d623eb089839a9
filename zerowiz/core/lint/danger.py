"""Find values that work, and cost more than anybody meant."""

from collections.abc import Iterator

from zerowiz.core.lint.config import Config
from zerowiz.core.lint.finding import Finding
from zerowiz.core.lint.rules import BUCKET_TOO_LARGE
from zerowiz.core.workload import FP32_BYTES

_PATH = "zero_optimization.reduce_bucket_size"
_HALF_BYTES = 2
# DeepSpeed's default of 5e8 elements takes up to an eighth of a GPU of 8 GiB.
_MOST_FRACTION = 1 / 8
# An eighth of 80 GB, for a GPU that nobody named.
_MOST_BYTES = 10 * 10**9


def check_danger(config: Config) -> Iterator[Finding]:
    """The reduce bucket, against the GPU's memory."""
    elements = config.number(_PATH)
    if elements is None or not config.stage:
        return
    size_bytes = elements * _element_bytes(config) * _buffers(config)
    gpu_bytes = config.context.gpu_bytes
    most_bytes = _MOST_BYTES if gpu_bytes is None else int(gpu_bytes * _MOST_FRACTION)
    if size_bytes > most_bytes:
        yield config.last[_PATH].found(
            BUCKET_TOO_LARGE,
            f"buckets of {elements} elements take {size_bytes} bytes of each GPU",
            mend="write 50000000",
        )


def _element_bytes(config: Config) -> int:
    off = all(config.get(f"{name}.enabled") is False for name in ("bf16", "fp16"))
    return FP32_BYTES if off else _HALF_BYTES


def _buffers(config: Config) -> int:
    # runtime/zero/stage_1_and_2.py, setup_buckets: a second one with overlap_comm; stage3.py has
    # one.
    overlaps = config.truth("zero_optimization.overlap_comm")
    return 2 if overlaps and config.stage in {1, 2} else 1
