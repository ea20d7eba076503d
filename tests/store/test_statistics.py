"""Buckets of what happened when, and what each user had a day: added to, read, deleted in time."""

from datetime import date

from server.domain.allowances import DAY
from server.domain.jobs import Bundle
from server.domain.statistics import ALL
from server.store.retention import forget_old
from shared.clock import SECOND
from shared.ids import AttemptKey
from shared.wire import JobState as S
from shared.wire import Usage
from tests.kit.store import claim, result

START = 1_000_800 * SECOND
NEXT = START + 600 * SECOND


async def test_numbers_are_added_and_of_longest_times_the_larger_is_kept(statistics) -> None:
    await statistics.add_counted({(START, ALL): {"started": 1, "longest_wait_us": 7}}, 0)
    more = {"started": 2, "longest_wait_us": 5, "failed": {"timeout": 1}}
    await statistics.add_counted({(START, ALL): more, (NEXT, "a"): {"started": 9}}, 0)
    ((at, service, numbers),) = await statistics.buckets(START, [ALL])
    assert (at, service) == (START, ALL)
    assert numbers == {"started": 3, "longest_wait_us": 7, "failed": {"timeout": 1}}
    assert await statistics.buckets(NEXT, [ALL, "b"]) == []
    assert await statistics.buckets(NEXT, [ALL, "a"]) == [(NEXT, "a", {"started": 9})]
    await statistics.add_counted({}, NEXT)
    assert await statistics.buckets(0, [ALL, "a"]) == [(NEXT, "a", {"started": 9})], "it is deleted"


async def test_what_is_over_is_its_users_on_the_day_of_its_end(jobs, statistics) -> None:
    """An attempt that another follows is, too; the bundle is with the first end of its job."""
    job = await jobs.claimed(bundle=Bundle("b", 7, "d"))
    for number, (state, at) in enumerate([(S.QUEUED, DAY - SECOND), (S.FAILED, DAY)], 1):
        job = await jobs.to(job, S.SUBMITTED, changes={"submitted_at": at - 3 * SECOND})
        start = {"started_at": at - 2 * SECOND}
        job = await jobs.to(job, S.RUNNING, changes=start, facts=start)
        used = Usage(wall_s=1.5, cpu_s=1.25)
        facts = {"usage": used, "result": result(f"r{number}", 5)}
        changes = {"queued_at": at} if state is S.QUEUED else {"ended_at": at}
        job = await jobs.to(job, state, at, seen=job, changes=changes, facts=facts)
        if state is S.QUEUED:
            job = await jobs.moved(claim(job))
    assert await jobs.attach_result(AttemptKey(job.id, 1), result("late")) is False
    again = await jobs.to(job, S.QUEUED, DAY, seen=job, changes={"run": 2, "queued_at": DAY})
    over = {"ended_at": DAY + 4 * SECOND, "expires_at": 1}
    last = await jobs.to(again, S.CANCELLED, DAY + 4 * SECOND, seen=again, changes=over)
    await jobs.clean([last])
    nothing = dict.fromkeys(("completed", "failed", "cancelled", "bundle_bytes"), 0)
    ran = {"service": "s", "ran_s": 1.5, "cpu_s": 1.25, "result_bytes": 5}
    first = nothing | ran | {"day": date(1970, 1, 1), "waited_s": DAY / SECOND - 3 - 0.00001}
    second = nothing | ran | {"day": date(1970, 1, 2), "failed": 1, "cancelled": 1}
    second |= {"bundle_bytes": 7, "waited_s": 4}
    assert await statistics.daily_usage("ann", 0) == [second, first]
    assert await statistics.daily_usage("ann", DAY) == [second]
    assert await statistics.daily_usage("bob", 0) == []
    await jobs.upload()
    of_schedule = await jobs.upload("bob", schedule_id=1)
    await jobs.to(of_schedule, S.CANCELLED, seen=of_schedule, changes=over)
    (found,) = await statistics.daily_usage("bob", 0)
    assert (found["cancelled"], found["bundle_bytes"]) == (1, 0), "that was uploaded once"


async def test_a_late_result_counts_on_the_day_of_its_attempt_and_old_days_are_deleted(
    jobs, statistics
):
    first, last = await jobs.claimed(), await jobs.claimed()
    for job, at in ((first, DAY), (last, 3 * DAY)):
        await jobs.to(job, S.FAILED, at, seen=job, changes={"ended_at": at})
    assert await jobs.attach_result(last.key, result("late", 9))
    latest, earlier = await statistics.daily_usage("ann", 0)
    assert (latest["day"], latest["result_bytes"]) == (date(1970, 1, 4), 9)
    assert (earlier["day"], earlier["result_bytes"]) == (date(1970, 1, 2), 0)
    await jobs.database.write(forget_old, 401 * DAY)
    assert len(await statistics.daily_usage("ann", 0)) == 2
    await jobs.database.write(forget_old, 402 * DAY)
    assert await statistics.daily_usage("ann", 0) == [latest]
