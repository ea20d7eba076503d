"""A wall clock that the soak sets, in a program that is started with this folder on PYTHONPATH: the
file of SOAK_CLOCK holds by how many seconds it is ahead."""

import os
import time

_PATH = os.environ["SOAK_CLOCK"]
_real_ns = time.time_ns


def _time_ns() -> int:
    with open(_PATH) as file:  # noqa: PTH123  # it is read at each look at the clock
        return _real_ns() + int(file.read()) * 1_000_000_000


time.time_ns = _time_ns
time.time = lambda: _time_ns() / 1e9
