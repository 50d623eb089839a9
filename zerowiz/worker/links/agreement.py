"""Let the ranks of a case agree on a number, so that all of them do the same."""

import torch
from torch import distributed


def agree_on_least(value: float, device: torch.device) -> int:
    """The least of what the ranks say; each waits here for the others."""
    return int(_reduce(value, device, distributed.ReduceOp.MIN))


def agree_on_most(value: float, device: torch.device) -> float:
    """The most of what the ranks say; each waits here for the others."""
    return _reduce(value, device, distributed.ReduceOp.MAX)


def _reduce(value: float, device: torch.device, how: distributed.ReduceOp) -> float:
    said = torch.tensor(float(value), dtype=torch.float64, device=device)
    distributed.all_reduce(said, op=how)
    return float(said.item())
