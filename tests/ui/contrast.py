"""How well a colour can be read on another one, as WCAG 2.2 defines it."""

Rgb = tuple[int, int, int]


def luminance(rgb: Rgb) -> float:
    """The relative luminance, from 0 (black) to 1 (white)."""
    parts = [part / 255 for part in rgb]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: Rgb, other: Rgb) -> float:
    """From 1, of a colour on itself, to 21, of black on white."""
    low, high = sorted(luminance(each) for each in (one, other))
    return (high + 0.05) / (low + 0.05)
