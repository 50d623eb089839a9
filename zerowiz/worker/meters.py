"""Measure a rank's memory: torch's allocator on CUDA, the resident set on the CPU accelerator."""

from pathlib import Path
from typing import Protocol

import torch

from zerowiz.worker.batch_files import Reading

_STATUS = Path("/proc/self/status")
# proc(5), clear_refs: 5 resets the peak resident set to the current one.
_CLEAR_REFS, _RESET_PEAK = Path("/proc/self/clear_refs"), "5"


def parse_status(text: str, key: str) -> int:
    """A size of /proc/self/status, such as `VmHWM`, in bytes."""
    line = next(line for line in text.splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def read_status(key: str) -> int:
    """A size of this process's /proc/self/status, in bytes."""
    return parse_status(_STATUS.read_text(encoding="utf-8"), key)


class Meter(Protocol):
    """Measures the memory of each phase."""

    def begin(self) -> None:
        """Begin a phase: its peak is counted from here."""

    def end(self) -> Reading:
        """End a phase, once all that it queued on the device has run."""

    def outside_bytes(self) -> int:
        """Memory that the phases do not count."""

    def retries(self) -> int | None:
        """How often the allocator had to flush its cache; None if there is none."""

    def host_peak_rss_bytes(self) -> int:
        """The largest resident set so far."""


class CudaMeter:
    """torch's caching allocator. Its reserved peak is the largest so far, as it is never reset."""

    def __init__(self) -> None:
        self._reserved_bytes = 0

    def begin(self) -> None:
        """Reset the peaks."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def end(self) -> Reading:
        """Allocated at the end, peak in the phase, peak reserved so far."""
        torch.cuda.synchronize()
        self._reserved_bytes = max(self._reserved_bytes, torch.cuda.max_memory_reserved())
        return {
            "allocated_bytes": torch.cuda.memory_allocated(),
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": self._reserved_bytes,
        }

    def outside_bytes(self) -> int:
        """What CUDA reports as taken on the device, less what torch reserved."""
        torch.cuda.synchronize()
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return int(total_bytes - free_bytes - torch.cuda.memory_reserved())

    def retries(self) -> int | None:
        """Flushes of the allocator's cache so far."""
        return int(torch.cuda.memory_stats()["num_alloc_retries"])

    def host_peak_rss_bytes(self) -> int:
        """The kernel's own high-water mark."""
        return read_status("VmHWM")


class CpuMeter:
    """The resident set, less what was resident before the model; nothing is reserved there."""

    def __init__(self) -> None:
        self._base_bytes = 0
        self._host_peak_bytes = 0

    def begin(self) -> None:
        """Reset the peak, where the kernel lets us."""
        self._host_peak_bytes = self.host_peak_rss_bytes()
        self._resets = self._reset()

    def _reset(self) -> bool:
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK, encoding="utf-8")
        except OSError:
            return False
        return True

    def end(self) -> Reading:
        """Resident at the end, and the peak in the phase."""
        peak_bytes = read_status("VmHWM") - self._base_bytes if self._resets else None
        return {
            "allocated_bytes": read_status("VmRSS") - self._base_bytes,
            "peak_bytes": peak_bytes,
            "peak_reserved_bytes": None,
        }

    def outside_bytes(self) -> int:
        """All that is resident. Called before the model, it becomes the base of the phases."""
        self._base_bytes = read_status("VmRSS")
        return self._base_bytes

    def retries(self) -> int | None:
        """None: there is no caching allocator."""
        return None

    def host_peak_rss_bytes(self) -> int:
        """The kernel's high-water mark, over all resets of `begin`."""
        return max(self._host_peak_bytes, read_status("VmHWM"))
