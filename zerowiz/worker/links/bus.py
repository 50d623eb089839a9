"""Measure what the links between the ranks carry, as nccl-tests counts it.

Bus bandwidth is what each link carries, whatever the number of ranks: the bytes of the whole
message over the time, times how often a ring sends each of them over a link
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import distributed

from zerowiz.worker.batch_files import BusReading
from zerowiz.worker.links.agreement import agree_on_least, agree_on_most
from zerowiz.worker.meters import parse_status

MIB = 2**20
# A small message, for which latency counts, one of a bucket, and one that fills the links.
SIZES_BYTES = (1 * MIB, 25 * MIB, 400 * MIB)
# How long one collective of one size is repeated, and how often at most.
_REPEATED_S, _REPEATS = 0.2, 20
# A size that would take longer is left out.
_SLOW_S = 0.25
# What is left of the time of the case, at least: some slow ones end in it.
_LEFT_S = 5.0
# What the ranks leave free beside the message and its result.
_SPARE_BYTES = 1024 * MIB
_FLOAT_BYTES = 4

Run = Callable[[torch.Tensor, torch.Tensor], object]
"""Takes a whole message and one rank's share of such a one."""


def _named(name: str, older: str) -> Run:
    """A function of torch.distributed by its name, or the one that it has in an older torch."""
    return cast("Run", getattr(distributed, name, None) or getattr(distributed, older))


_gather = _named("all_gather_single", "all_gather_into_tensor")
_scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")
COLLECTIVES: Mapping[str, Run] = {
    "all_reduce": lambda whole, _: distributed.all_reduce(whole),
    "all_gather": _gather,
    "reduce_scatter": lambda whole, share: _scatter(share, whole),
}


def times_sent(collective: str, ranks: int) -> float:
    """How often a ring sends each byte of the message over a link."""
    passes = 2 if collective == "all_reduce" else 1
    return passes * (ranks - 1) / ranks


def measure_bus(device: torch.device, until: float) -> list[BusReading]:
    """The bus bandwidth of each collective and size for which there is memory and time.

    Args:
        device: Of this rank.
        until: When the case is ended, in seconds since 1970.
    """
    ranks = distributed.get_world_size()
    readings: list[BusReading] = []
    for collective, run in COLLECTIVES.items():
        bytes_per_s = float("inf")
        for size_bytes in SIZES_BYTES:
            slow = size_bytes / bytes_per_s > _SLOW_S
            if slow or not _has_room(size_bytes, device, until):
                break
            seconds = _time(run, size_bytes, ranks, device)
            bytes_per_s = size_bytes / seconds
            readings.append(
                {
                    "collective": collective,
                    "size_bytes": size_bytes,
                    "bus_bytes_per_s": int(bytes_per_s * times_sent(collective, ranks)),
                }
            )
    return readings


def _has_room(size_bytes: int, device: torch.device, until: float) -> bool:
    """Whether every rank has the memory, and the time for some slow ones."""
    enough = _free_bytes(device) > 2 * size_bytes + _SPARE_BYTES
    in_time = until - time.time() > _LEFT_S
    return agree_on_least(enough and in_time, device) == 1


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    ranks: int = distributed.get_world_size()
    return parse_status(text, "MemAvailable") // ranks


def _time(run: Run, size_bytes: int, ranks: int, device: torch.device) -> float:
    """The seconds that one takes on the slowest rank, once the links are open."""
    share = torch.ones(size_bytes // _FLOAT_BYTES // ranks, device=device)
    whole = torch.ones(share.numel() * ranks, device=device)
    _repeat(run, whole, share, 1)
    once = agree_on_most(_repeat(run, whole, share, 1), device)
    times = max(1, min(_REPEATS, int(_REPEATED_S / once)))
    return agree_on_most(_repeat(run, whole, share, times), device) / times


def _repeat(run: Run, whole: torch.Tensor, share: torch.Tensor, times: int) -> float:
    _finish(whole.device)
    began = time.perf_counter()
    for _ in range(times):
        run(whole, share)
    _finish(whole.device)
    return time.perf_counter() - began


def _finish(device: torch.device) -> None:
    """Wait until the device has done all that was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
