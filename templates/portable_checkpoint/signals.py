"""Take signals as wishes: SIGUSR1 for a checkpoint, SIGTERM for a checkpoint and the end."""

import signal

import torch
from torch import distributed as dist


class SaveSignals:
    """What was asked of any rank, agreed on by all between two steps."""

    def __init__(self) -> None:
        self._asked = 0
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self._asked = max(self._asked, number)  # SIGTERM is the greater, and asks for more

    def agreed(self, device: torch.device) -> int:
        """The signal that one rank or another got since the last call; 0 for none."""
        asked, self._asked = self._asked, 0
        if not dist.is_initialized():
            return asked
        worst = torch.tensor(asked, device=device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return int(worst)
