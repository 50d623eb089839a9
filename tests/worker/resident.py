"""Memory that was not resident before."""

from mmap import mmap

import torch


def resident(size_bytes: int) -> torch.Tensor:
    """So many bytes, mapped anew and touched: malloc may hand out what an earlier test freed."""
    return torch.frombuffer(mmap(-1, size_bytes), dtype=torch.uint8).fill_(1)
