"""Times and sizes as people read them."""

from __future__ import annotations


def say_duration(seconds: float) -> str:
    """For people: ``1h 30m``, ``48s``, ``0.3s``, ``20ms``."""
    if 0 < seconds < 0.1:
        return f"{max(1, round(seconds * 1000))}ms"
    if seconds < 10:
        return f"{seconds:.1f}s".replace(".0s", "s")
    left, parts = round(seconds), []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def say_count(count: int, what: str) -> str:
    """For people: ``1 job``, ``2 jobs``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def say_size(count: float) -> str:
    """For people: ``512 B``, ``1.5 KiB``, ``2.0 GiB``."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"
