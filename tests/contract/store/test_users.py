"""Users, by what they have."""

from __future__ import annotations

from server.store.jobs import SqlJobs
from server.store.users import UserLoad
from tests.contract.store.conftest import new


async def test_users_are_listed_by_name_from_one_on(jobs: SqlJobs) -> None:
    for user in ("bob", "ann", "zoe", "ann", "Bob"):
        await jobs.insert(new(user), "queued")
    assert await jobs.users("", 10) == ["Bob", "ann", "bob", "zoe"]
    assert await jobs.users("", 2) == ["Bob", "ann"]
    assert await jobs.users("b", 10) == ["bob", "zoe"]
    assert await jobs.users("bob", 1) == ["bob"]
    assert await jobs.users("zz", 10) == []


async def test_who_waits_is_listed_for_a_service(jobs: SqlJobs) -> None:
    for user, service in (("bob", "s"), ("ann", "s"), ("ann", "s"), ("zoe", "other")):
        await jobs.insert(new(user, service), "queued")
    assert await jobs.waiting_users("s", 10, 10) == {"ann": 2, "bob": 1}
    assert await jobs.waiting_users("s", 10, 1) == {"ann": 1, "bob": 1}
    assert await jobs.waiting_users("s", 1, 10) == {"ann": 2}
    assert await jobs.waiting_users("none", 10, 10) == {}


async def test_what_users_have_is_what_each_has_alone(jobs: SqlJobs) -> None:
    for user in ("bob", "ann", "ann"):
        await jobs.insert(new(user), "queued", most_uploaded=100)
    loads = await jobs.user_loads(["ann", "bob", "none"], 0, 1)
    assert loads["none"] == UserLoad()
    assert loads["ann"].queued == loads["bob"].queued == 1, "counted no further"
    assert (await jobs.user_loads(["ann"], 0, 10))["ann"].queued == 2
    for user in ("ann", "bob"):
        assert loads[user].stored == await jobs.stored(user) > 0
        assert loads[user].uploaded == await jobs.uploaded(user, 0) > 0
    assert await jobs.user_loads([], 0, 1) == {}
