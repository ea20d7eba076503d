"""Some of the disk stays free at every moment, whoever writes."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.storage.scratch import NoSpace, Reservation, Space

MIN_FREE = 1000


class Disk:
    """A simulated disk: what was taken is written when its writer takes the next piece, or ends."""

    def __init__(self, size: int) -> None:
        self.size, self.used, self.least, self.asked = size, 0, size, 0
        self.space = Space(self.free, MIN_FREE)
        self.space.measure()

    def free(self) -> int:
        self.asked += 1
        return self.size - self.used

    def write(self, count: int) -> None:
        self.used += count
        self.least = min(self.least, self.free())


@given(
    st.integers(0, 60_000),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9000)), max_size=60),
)
def test_however_writers_take_turns_min_free_is_kept(size, turns):
    disk = Disk(MIN_FREE + size)
    writers = [Reservation(disk.space) for _ in range(4)]
    pending = [0] * 4
    for number, count in turns:
        disk.write(pending[number])  # the piece before is on the disk
        pending[number] = 0
        try:
            writers[number].take(count)
        except NoSpace:
            continue
        pending[number] = count
    for left in pending:
        disk.write(left)
    assert disk.least >= MIN_FREE
    for one in writers:
        one.end()
    disk.space.measure()
    assert disk.space.available() == disk.free() - MIN_FREE


def test_what_is_granted_to_one_is_not_there_for_another_until_it_ends():
    disk = Disk(MIN_FREE + 100)
    first, second = Reservation(disk.space), Reservation(disk.space)
    first.take(60)
    with pytest.raises(NoSpace) as caught:
        second.take(60)
    assert caught.value.errno == errno.ENOSPC
    second.take(30)
    assert disk.space.available() == 10
    first.end()
    second.end()
    disk.space.measure()
    assert disk.space.available() == 100, "nothing was written"


def test_a_small_file_holds_little_and_a_large_one_asks_the_disk_now_and_then_only():
    disk = Disk(1 << 50)
    small, before = Reservation(disk.space), disk.space.available()
    small.take(500)
    small.take(500)
    assert before - disk.space.available() <= 2000
    asked, large = disk.asked, Reservation(disk.space)
    for _ in range(4096):  # 256 MiB
        large.take(64 << 10)
    assert disk.asked - asked < 100
