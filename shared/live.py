"""Settings that change while a program runs: parts read them at each use, or are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
Value: TypeAlias = T | Callable[[], T]
"""A value that stays, or what gives the one that holds now."""


def reading(value: Value[T]) -> Callable[[], T]:
    """What gives the value that holds now."""
    if callable(value):
        return value
    return lambda: value


class Live(Generic[T]):
    """The settings in use.

    Attributes:
        current: as they are now; frozen, so who reads two of its values reads them of one file.
    """

    def __init__(self, current: T) -> None:
        self.current = current
        self._followers: list[Callable[[T], None]] = []

    def follow(self, use: Callable[[T], None]) -> None:
        """Call it now and after each change, for what is made of settings. It must not fail: what
        can be wrong with settings is found before they are used.
        """
        use(self.current)
        self._followers.append(use)

    def change(self, new: T) -> None:
        """Use these from now on."""
        self.current = new
        for use in self._followers:
            use(new)
