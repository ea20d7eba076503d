"""What every store must keep of services that operators made, changed or paused."""

import pytest

from server.domain.access import Visible
from server.domain.choose import Candidate
from server.domain.errors import Conflict
from server.domain.service import Service
from shared.clock import utc
from shared.wire import JobState
from tests.kit.store import claim

ANY = [Candidate("node", None)]


async def test_nothing_of_a_paused_service_is_claimed_whatever_the_caller_knows(jobs, services):
    await jobs.added("ann", "bob")
    await services.set_paused("s", "new disks", 10)
    (record,) = await services.all_services()
    assert (record.paused, record.paused_message, record.settings) == (True, "new disks", None)
    assert await jobs.claim_fairly(Service("s"), ANY, 99, 20) == []
    await services.set_paused("s", None, 30)
    assert len(await jobs.claim_fairly(Service("s"), ANY, 99, 40)) == 2


async def test_operators_make_so_many_services_and_no_more(services, monkeypatch):
    monkeypatch.setattr("server.store.services._MAX_SERVICES", 2)
    for name in ("a", "b", "b"):  # one that there is can be changed
        await services.put(name, {}, None, 10)
    with pytest.raises(Conflict):
        await services.put("c", {}, None, 20)
    await services.retire("a", 30)
    await services.put("c", {}, None, 40)
    monkeypatch.setattr("server.store.services._MAX_SERVICES", 1)
    await services.put("c", {}, None, 45)  # that there are too many is not its fault
    with pytest.raises(Conflict):
        await services.put("a", {}, None, 50)


async def test_jobs_are_counted_by_state_that_may_be_seen_and_no_further_than_asked(jobs, services):
    for user, submitter, at in (
        ("ann", "portal", 5),
        ("bob", None, 10),
        ("ann", "other", 20),
        ("bob", "portal", 30),
        ("ann", "portal", 40),
    ):
        job = await jobs.upload(user, submitted_by=submitter, created_at=at)
        if at == 5:
            await jobs.move(claim(job))
    await jobs.added("ann", service="other")
    for where, queued, in_work, oldest in (
        (Visible(), 4, 1, 10),
        (Visible(user_id="ann"), 2, 1, 20),
        (Visible(submitted_by="portal"), 2, 1, 30),
        (Visible(user_id="ann", submitted_by="portal"), 1, 1, 40),
        (Visible(user_id="bob", submitted_by="other"), 0, 0, None),
    ):
        load = await services.load("s", 99, where)
        assert load["counts"].keys() == set(JobState)
        counted = {state: jobs for state, jobs in load["counts"].items() if jobs}
        states = {JobState.QUEUED: queued, JobState.PROCESSING: in_work}
        assert counted == {state: jobs for state, jobs in states.items() if jobs}, where
        since = None if oldest is None else utc(oldest)
        assert (load["in_work"], load["oldest_queued_at"]) == (in_work, since), where
    assert (await services.load("s", 2, Visible()))["counts"][JobState.QUEUED] == 2
    assert (await services.load("none", 2, Visible()))["oldest_queued_at"] is None
