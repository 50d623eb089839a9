"""What stands on the screen since each answer, so that going back takes it off."""


class Transcript:
    """The rows of a conversation, in order."""

    def __init__(self) -> None:
        self._blocks: list[tuple[str | None, int]] = []

    def add(self, rows: int, key: str | None = None) -> None:
        """Rows were written: of the answer to the question of this key, or of anything else."""
        self._blocks.append((key, rows))

    def forget(self) -> None:
        """What was written is not to be taken back any more."""
        self._blocks.clear()

    def take_back(self, key: str) -> int:
        """How many rows were written since this question was open last; they are forgotten."""
        rows = 0
        for index in reversed(range(len(self._blocks))):
            rows += self._blocks[index][1]
            if self._blocks[index][0] == key:
                del self._blocks[index:]
                return rows
        return 0
