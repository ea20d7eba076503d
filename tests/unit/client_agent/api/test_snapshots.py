"""Snapshots of running attempts: few at once, and of the space that may be used."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import cast

import pytest

from client_agent.api.routes import MAX_SNAPSHOTS, Snapshots
from client_agent.collect import result
from client_agent.intake.admission import Admission
from client_agent.payloads.errors import Refused
from client_agent.storage import open_beneath
from shared.wire import Limits
from tests.kit.agent import Rig
from tests.kit.clock import SimClock

LIMITS = Limits(results=64 << 20)


class Disk:
    """``Admission``, as far as snapshots use it.

    Attributes:
        checked: sizes that were checked.
        full_at: number of the check that finds the disk full.
    """

    def __init__(self):
        self.checked, self.full_at = [], 0

    def check_space(self, size):
        self.checked.append(size)
        if len(self.checked) == self.full_at:
            raise Refused(507, "disk_full", "too little space")


class SnapshotRig(Rig):
    """An agent in pieces that has snapshots."""

    disk: Disk
    snapshots: Snapshots


class Held:
    """Packing that waits until the test lets it go on."""

    def __init__(self, monkeypatch):
        self.made: list[str] = []
        self.began, self.go_on = threading.Event(), threading.Event()
        real = result.snapshot

        def held(*args):
            self.made.append(threading.current_thread().name)
            self.began.set()
            self.go_on.wait(30)
            real(*args)

        monkeypatch.setattr(result, "snapshot", held)


@pytest.fixture
async def rig(tmp_path):
    made = SnapshotRig(tmp_path, SimClock(), slots=MAX_SNAPSHOTS + 1)
    await made.open()
    made.disk = Disk()
    disk = cast("Admission", made.disk)
    made.snapshots = Snapshots(made.runner, made.folders, disk)
    yield made
    made.snapshots.close()
    await made.close()
    assert not list((tmp_path / "staging").iterdir())


@pytest.fixture
def held(monkeypatch):
    made = Held(monkeypatch)
    yield made
    made.go_on.set()


async def running(rig, key="1.1", data=b"45"):
    payload = await rig.submit(key, limits=LIMITS)
    (await rig.sandbox.process(key)).write("sofar", data)
    return await rig.payloads.get(payload.id)


async def read(rig, payload):
    async with rig.snapshots.open(payload) as path:
        return path.read_bytes()


async def test_the_threads_of_attempts_are_not_used(rig, held):
    held.go_on.set()
    await read(rig, await running(rig))
    assert held.made[0].startswith("ferryman-snapshot")


async def test_a_later_snapshot_has_what_was_written_later(rig):
    payload = await running(rig)
    first = await read(rig, payload)
    (await rig.sandbox.process("1.1")).write("more", b"46")
    assert await read(rig, payload) != first


async def test_no_more_exist_at_once_than_allowed(rig):
    payloads = [await running(rig, f"{number}.1") for number in range(1, MAX_SNAPSHOTS + 2)]
    held = [rig.snapshots.open(payload) for payload in payloads[:MAX_SNAPSHOTS]]
    for one in held:
        await one.__aenter__()
    with pytest.raises(Refused) as caught:
        await read(rig, payloads[MAX_SNAPSHOTS])
    assert (caught.value.status, caught.value.code) == (503, "busy")
    await held[0].__aexit__(None, None, None)
    assert await read(rig, payloads[MAX_SNAPSHOTS])
    for one in held[1:]:
        await one.__aexit__(None, None, None)


async def test_one_that_nobody_waits_for_any_more_is_not_finished(rig, held):
    payload = await running(rig)
    asking = asyncio.ensure_future(read(rig, payload))
    await asyncio.to_thread(held.began.wait, 30)
    asking.cancel()
    held.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert rig.disk.checked == [0], "before it began"
    assert await read(rig, payload)


@pytest.mark.parametrize("when", [1, 2, 3])
async def test_it_leaves_the_space_that_must_stay_free_before_and_while_it_is_written(rig, when):
    payload = await running(rig, data=os.urandom(10 << 20))
    rig.disk.full_at = when
    with pytest.raises(Refused) as caught:
        await read(rig, payload)
    assert caught.value.status == 507
    assert [size > 10 << 20 for size in rig.disk.checked] == [False, True, False][:when]
    assert await read(rig, payload)


def test_the_modes_of_a_running_jobs_files_stay_as_they_are(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    real = open_beneath.open_component

    def refused(parent, name, flags):
        if flags & os.O_PATH:
            return real(parent, name, flags)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(open_beneath, "open_component", refused)
    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    (tmp_path / "file").chmod(0)
    (tmp_path / "folder").chmod(0)
    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    top = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(PermissionError):
        open_beneath.open_directory(top, "folder", may_chmod=False)
    with pytest.raises(PermissionError):
        open_beneath.open_file(top, "file", (tmp_path / "file").stat(), may_chmod=False)
    os.close(top)
    assert {path.name: path.stat().st_mode for path in tmp_path.iterdir()} == modes
