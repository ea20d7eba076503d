"""A few functions, each of which one mutant of the sample changes."""

from collections.abc import Callable
from typing import Final

LIMIT: Final = 3
NAMES: Final = {number: f"name {number}" for number in range(LIMIT)}


def counted(function: Callable[[int], int]) -> Callable[[int], int]:
    def again(number: int) -> int:
        return function(number) + 1

    return again


@counted
def doubled(number: int) -> int:
    return number * 2


class Thing:
    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def even(self) -> bool:
        return self._number % 2 == 0

    def down(self) -> int:
        while self._number > 0:
            self._number -= 1
        return self._number


def name_of(number: int) -> str:
    return NAMES[number]


def nobody_asks() -> int:
    return 1
