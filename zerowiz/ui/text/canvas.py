"""A terminal that is not there: what would be shown on it is kept, to be drawn."""

from io import StringIO


class Canvas(StringIO):
    """Shows colours, whatever the environment says.

    Args:
        columns: How wide it is.
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def isatty(self) -> bool:
        """It is what a terminal would show."""
        return True
