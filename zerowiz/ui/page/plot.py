"""Lay out a drawing: its axes with round numbers, and names that touch nothing."""

from math import floor, log10
from typing import NamedTuple

_LETTER, _LINE, _APART = 6.4, 13, 3


class Box(NamedTuple):
    """Where something is drawn already."""

    left: float
    right: float
    top: float
    bottom: float

    def touches(self, other: "Box") -> bool:
        """Whether both have a point in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def wider(self, by: float) -> "Box":
        """With so much more on each side."""
        return Box(self.left - by, self.right + by, self.top - by, self.bottom + by)


class LinearAxis(NamedTuple):
    """Values between two ends of a drawing."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Where a value stands; at an end where it lies beyond."""
        inside = min(max(value, self.low), self.high)
        return self.begin + (inside - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self, most: int) -> list[float]:
        """Round numbers in equal steps.

        Example:
            >>> LinearAxis(-25, 38, 0, 1).ticks(6)
            [-20, 0, 20]
        """
        rough = (self.high - self.low) / (most - 1)
        power = 10 ** floor(log10(rough))
        step = next(power * n for n in (1, 2, 5, 10, 20) if power * n >= rough)
        first = -floor(-self.low / step)
        found = [step * (first + n) for n in range(most)]
        return [value for value in found if value <= self.high]


# The first digits of ticks, from many to few.
_DIGITS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))


class LogAxis(NamedTuple):
    """Positive values between two ends of a drawing, equal ratios at equal distances."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Where a value stands; at an end where it lies beyond."""
        inside = min(max(value, self.low), self.high)
        part = log10(inside / self.low) / log10(self.high / self.low)
        return self.begin + part * (self.end - self.begin)

    def ticks(self, most: int) -> list[float]:
        """Round numbers, as many as there may be.

        Example:
            >>> LogAxis(0.7, 3.7, 0, 1).ticks(6)
            [0.7, 1, 1.5, 2, 3]
        """
        powers = range(floor(log10(self.low)), floor(log10(self.high)) + 1)
        for digits in _DIGITS:
            # The power as a divisor keeps 0.7 what it is.
            found = [
                digit * 10**power if power >= 0 else digit / 10**-power
                for power in powers
                for digit in digits
            ]
            inside = [value for value in found if self.low <= value <= self.high]
            if len(inside) <= most:
                return inside
        return []


class Names:
    """Places for names beside their points.

    Args:
        inside: Where they may stand.
    """

    def __init__(self, inside: Box) -> None:
        self._inside = inside
        self._taken: list[Box] = []

    def keep_off(self, box: Box) -> None:
        """Nothing is written there."""
        self._taken.append(box)

    def place(self, name: str, x: float, y: float, gap: float) -> tuple[float, float, str]:
        """Where a name stands: across, its line, and which end of it stands there.

        Args:
            name: Its letters.
            x: Of its point.
            y: Of its point.
            gap: How far from the point it begins.
        """
        width = _LETTER * len(name)
        starts = {"start": x + gap, "end": x - gap - width, "middle": x - width / 2}
        for distance in range(0, 8 * _LINE, _LINE // 2):
            for down in (0, distance, -distance):
                for anchor, left in starts.items():
                    if anchor == "middle" and not down:
                        continue
                    top = y + down - _LINE / 2
                    box = Box(left, left + width, top, top + _LINE)
                    if self._is_free(box):
                        # A sign of another font is wider than a letter.
                        self._taken.append(box.wider(_APART))
                        at = {"start": left, "end": left + width, "middle": x}[anchor]
                        return at, top + _LINE - 3, anchor
        return x, y, "middle"

    def _is_free(self, box: Box) -> bool:
        inside = self._inside
        fits = box.left > inside.left and box.right < inside.right
        fits = fits and box.top > inside.top and box.bottom < inside.bottom
        return fits and not any(box.touches(each) for each in self._taken)
