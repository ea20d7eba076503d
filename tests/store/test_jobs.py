"""Jobs and their attempts: a move is made once, whole, with its event; what may be taken is counted
where it is written.
"""

import asyncio
from typing import Any

import pytest

from server.domain import states
from server.domain.allowances import DAY, OverQuota, Quota
from server.domain.errors import Conflict, NoSuchAttempt
from server.domain.jobs import Step
from server.domain.permits import Ticket, TicketUsed
from server.store import webhooks
from server.store.changes import TOTALS
from server.store.pages import Filter
from server.store.requests import insert_job
from shared.ids import AttemptKey
from shared.sql import Tx
from shared.wire import JobState, Limits, Reason, Usage
from tests.kit.each import each
from tests.kit.store import Store, claim, end, new, result

S = JobState
BACK = {"agent": None, "payload_id": None, "submitted_at": None, "started_at": None}
FACTS: dict[str, Any] = {
    "exit_code": 3,
    "stderr_tail": "the last lines",
    "usage": Usage(wall_s=61.0, cpu_s=2.5, peak_memory_bytes=7),
    "warnings": ["one"],
    "enforcement": {"memory": "hard"},
}


async def test_a_move_its_event_and_a_wakeup_are_one_and_of_two_only_one_is_made(jobs):
    job = await jobs.upload()
    claimed = await jobs.moved(claim(job))
    assert (claimed.state, claimed.attempt, claimed.agent) == (S.PROCESSING, 1, "node")
    both = await asyncio.gather(
        jobs.move(end(claimed, S.FAILED)), jobs.move(end(claimed, S.QUEUED))
    )
    assert (both[0] is None) != (both[1] is None)
    over = await jobs.get(job.id)
    history = await jobs.events(job.id)
    assert [(event.before, event.state, event.attempt) for event in history] == [
        (None, S.QUEUED, 0),
        (S.QUEUED, S.PROCESSING, 1),
        (S.PROCESSING, over.state, 1),
    ]
    assert [one.state for one in jobs.changed] == [S.QUEUED, S.PROCESSING, over.state]


async def test_a_report_of_an_older_attempt_and_a_claim_of_what_is_cancelled_change_nothing(jobs):
    first = await jobs.claimed()
    second = await jobs.moved(claim(await jobs.to(first, S.QUEUED)))
    with pytest.raises(AssertionError):
        await jobs.to(first, S.SUBMITTED)
    assert await jobs.get(first.id) == second
    (job,) = await jobs.added("ann")
    await jobs.request_cancel(job.id, 15)
    assert await jobs.move(claim(job)) is None


async def test_several_steps_are_made_together_or_not_at_all(jobs: Store) -> None:
    job = await jobs.claimed()
    steps = (Step(S.SUBMITTED, 28, "has it"), Step(S.RUNNING, 29, "started"))
    move = end(job, S.COMPLETED, steps, result=result("r"))
    done = await jobs.moved(move)
    assert (done.state, done.result, done.expires_at) == (S.COMPLETED, result("r"), 30)
    assert await jobs.move(move) is None
    history = [(one.before, one.state, one.at, one.message) for one in await jobs.events(job.id)]
    assert history[2:] == [
        (S.PROCESSING, S.SUBMITTED, 28, "has it"),
        (S.SUBMITTED, S.RUNNING, 29, "started"),
        (S.RUNNING, S.COMPLETED, 30, "ended"),
    ]


async def test_what_holds_a_slot_is_the_same_in_sql_and_in_the_table(jobs: Store) -> None:
    held: dict[tuple[str, ...], int] = {("s", "ann", "x"): 2, ("s", "bob", "y"): 1}
    for user, agent in (("ann", "x"), ("ann", "x"), ("bob", "y")):
        await jobs.claimed(agent, user=user)
    found = (await jobs.totals()).slots.items()
    assert {of[:3]: slots for of, slots in found} == held
    for state in S:
        await jobs.sql(f"UPDATE jobs SET state = '{state}' WHERE id = 1")
        slots = (await jobs.totals()).slots.total()
        assert slots == 2 + (state in states.HOLDS_SLOT), state


async def test_what_is_counted_survives_a_refusal_and_is_counted_again_after_what_is_undone(jobs):
    """A user who is over a quota would have all be counted at each try."""
    await jobs.upload()
    assert (await jobs.totals()).queued == {("s", "ann"): 1}
    kept = jobs.database.memory[TOTALS]
    with pytest.raises(OverQuota):
        await jobs.insert(new(), "queued", Quota(queued=1))
    assert jobs.database.memory[TOTALS] is kept

    def undone(tx: Tx) -> None:
        insert_job(tx, new(), "queued")
        raise LookupError

    for beside in (0, 1):
        changes = [jobs.database.write(undone), *[jobs.upload("bob") for _ in range(beside)]]
        failed, *_ = await asyncio.gather(*changes, return_exceptions=True)
        assert isinstance(failed, LookupError)
        waiting = {("s", "ann"): 1} | ({("s", "bob"): 1} if beside else {})
        assert (await jobs.totals()).queued == waiting
        assert jobs.database.memory[TOTALS] is not kept
        kept = jobs.database.memory[TOTALS]
        await jobs.check()


async def test_jobs_in_some_states_come_oldest_first(jobs: Store) -> None:
    for number, job in enumerate(await jobs.added(*"abcd")):
        sent = await jobs.moved(claim(job, agent="zyxw"[number]))
        if number % 2 == 0:
            await jobs.to(sent, S.SUBMITTED)
    assert [job.id for job in await jobs.in_states(states.HOLDS_SLOT)] == [1, 2, 3, 4]
    assert [job.id for job in await jobs.in_states(states.AT_AGENT)] == [1, 3]
    for _ in range(2):  # some of one agent are shown, and no more are read
        await jobs.claimed("w")
    oldest = await jobs.oldest_held(["w", "no-one"], 2)
    assert [job.id for job in oldest["w"]] == [4, 5]
    assert oldest["no-one"] == []


# -- uploads


async def test_a_key_and_a_ticket_make_one_job_however_often_they_are_sent(jobs, monkeypatch):
    ticket = Ticket(issued_by="portal", expires_at=99, id="t", user_id="ann")
    await jobs.upload(ticket=ticket)
    with pytest.raises(TicketUsed):
        await jobs.upload(ticket=ticket)
    monkeypatch.setattr("server.store.retention._KEYS_AT_ONCE", 1)
    keyed = new(idempotency_key="k")
    results = await asyncio.gather(*(jobs.insert(keyed, "queued", Quota(2)) for _ in range(5)))
    assert len({job.id for job, _ in results}) == 1
    assert [fresh for _, fresh in results].count(True) == 1, "a repeat does not wait, too"
    assert (await jobs.insert(new("bob", idempotency_key="k"), "queued"))[1]
    assert [await jobs.forget_old(11 + DAY) for _ in range(3)] == [True, True, False]
    assert (await jobs.insert(keyed, "queued"))[1]


SIZE = new().bundle.size if new().bundle else 0


async def test_a_try_of_a_webhook_is_begun_once(jobs: Store) -> None:
    job = await jobs.upload(callback_url="https://portal.example.org/", submitted_by="portal")
    await jobs.moved(end(job, S.CANCELLED))
    due, _ = await jobs.database.read(webhooks.due, 99, 9, ("", ""), targets=(), principals=())
    begun = [await jobs.database.write(webhooks.begin, due, until) for until in (200, 300)]
    assert [[one.next_at for one in some] for some in begun] == [[200], []]


@each(
    "names, most, one, why",
    [
        ("count", Quota(queued=3), Quota(queued=1), "queue_full"),
        ("bytes", Quota(stored=3 * SIZE), Quota(stored=SIZE), "storage_full"),
        ("day", Quota(uploaded=3 * SIZE), Quota(uploaded=SIZE), "upload_quota"),
    ],
)
async def test_of_fifty_at_once_as_many_are_taken_as_may_be(jobs, names, most, one, why):
    ann, bob = f"ann-{names}", f"bob-{names}"
    created: dict[str, Any] = {"created_at": 10 + ["count", "bytes", "day"].index(names) * DAY}
    ends = await asyncio.gather(
        *(jobs.insert(new(ann, **created), "queued", most) for _ in range(50)),
        *(jobs.insert(new(bob, **created), "queued", one) for _ in range(2)),
        return_exceptions=True,
    )
    assert [type(end) is tuple for end in ends].count(True) == 3 + 1
    assert {getattr(end, "code", "") for end in ends} == {"", why}
    assert len((await jobs.page(Filter(user_id=ann), None, 99))[0]) == 3
    assert (await jobs.stored(ann), await jobs.stored(bob)) == (3 * SIZE, SIZE)
    await jobs.check()


async def test_uploads_count_for_their_day_and_services_have_queues_of_their_own(jobs):
    await jobs.insert(new(), "queued", Quota(queued=1, uploaded=SIZE))
    await jobs.insert(new(service="t"), "queued", Quota(queued=1))
    tomorrow = new(created_at=10 + DAY)
    await jobs.insert(tomorrow, "queued", Quota(uploaded=SIZE))
    assert await jobs.uploaded("ann", 10) == await jobs.uploaded("ann", 10 + DAY) == SIZE
    await jobs.forget_old(10 + 32 * DAY)
    assert (await jobs.uploaded("ann", 10), await jobs.uploaded("ann", 10 + DAY)) == (0, SIZE)


# -- attempts


async def test_a_claim_begins_an_attempt_and_one_that_no_agent_took_leaves_none(jobs):
    job = await jobs.claimed(limits=Limits(cpus=2))
    (attempt,) = await jobs.attempts(job.id)
    assert (attempt.job_id, attempt.number, attempt.state) == (job.id, 1, S.PROCESSING)
    assert (attempt.agent, attempt.claimed_at) == ("node", 20)
    assert attempt.ended_at is None
    back = await jobs.to(job, S.QUEUED, changes=BACK)
    assert await jobs.attempts(job.id) == []
    await jobs.moved(claim(back, "south"))
    assert [(one.number, one.agent) for one in await jobs.attempts(job.id)] == [(2, "south")]
    with pytest.raises(NoSuchAttempt):
        await jobs.attempt(job.key)


async def test_what_an_attempt_left_is_kept_when_another_one_follows(jobs: Store) -> None:
    job = await jobs.claimed()
    taken = await jobs.to(job, S.SUBMITTED, changes={"payload_id": 5, "submitted_at": 30})
    back = await jobs.to(
        taken,
        S.QUEUED,
        40,
        reason=Reason.EXIT_CODE,
        changes=BACK,
        facts=FACTS | {"result": result("r1"), "started_at": 31},
        through=(Step(S.RUNNING, 31, "run.sh started"),),
    )
    assert (back.exit_code, back.result, back.agent) == (None, None, None)
    second = await jobs.moved(claim(back, "south"))
    first = await jobs.attempt(AttemptKey(job.id, 1))
    assert (first.state, first.reason) == (S.FAILED, Reason.EXIT_CODE)
    times = (first.claimed_at, first.submitted_at, first.started_at, first.ended_at)
    assert times == (20, 30, 31, 40)
    assert (first.agent, first.payload_id, first.result) == ("node", 5, result("r1"))
    assert {name: getattr(first, name) for name in FACTS} == FACTS | {"warnings": ("one",)}
    steps = (Step(S.SUBMITTED, 25, "south has it"),)
    left = result("r2", 4, inputs=3)
    facts = FACTS | {"exit_code": 0, "result": left}
    done = await jobs.moved(end(second, S.COMPLETED, steps, **facts))
    assert (done.exit_code, done.usage, done.result) == (0, FACTS["usage"], left)
    one, two = await jobs.attempts(job.id)
    assert (one, two.state, two.result) == (first, S.COMPLETED, left)


async def test_a_result_that_comes_late_is_its_attempts_and_no_others(jobs: Store) -> None:
    job = await jobs.claimed()
    back = await jobs.to(job, S.QUEUED, reason=Reason.AGENT_LOST, changes=BACK)
    second = await jobs.moved(claim(back))
    assert await jobs.attach_result(AttemptKey(job.id, 1), result("r1", inputs=2))
    assert not await jobs.attach_result(AttemptKey(job.id, 1), result("other"))
    assert not await jobs.attach_result(second.key, result("r2")), "it is under way"
    assert not await jobs.attach_result(AttemptKey(job.id, 3), result("r3"))
    assert (await jobs.get(job.id)).result is None
    found = {one.number: one.result for one in await jobs.attempts(job.id)}
    assert found == {1: result("r1", inputs=2), 2: None}


async def test_an_attempt_that_was_given_up_and_is_back_is_the_one_that_ended(jobs: Store) -> None:
    job = await jobs.claimed()
    back = await jobs.to(job, S.QUEUED, changes=BACK)
    facts: dict[str, Any] = {"result": result("r1"), "agent": "node", "payload_id": 5}
    steps = (Step(S.PROCESSING, 30, "it is back"), Step(S.SUBMITTED, 30, "it is back"))
    await jobs.moved(end(back, S.COMPLETED, steps, **facts))
    (attempt,) = await jobs.attempts(job.id)
    assert (attempt.number, attempt.state, attempt.payload_id) == (1, S.COMPLETED, 5)
    assert attempt.result == result("r1")


# -- tags and users


async def tagged(jobs: Store, tag: str) -> list[int]:
    return (await jobs.ids(Filter(tag=tag), None, 99))[0]


async def test_tags_are_added_and_removed_with_an_event(jobs: Store) -> None:
    job = await jobs.upload(tags=("a", "b"))
    changed = await jobs.change_tags(job.id, ("c", "a", "c"), ("b", "z"), 30, "ann")
    assert changed.tags == ("a", "c")
    assert await jobs.get(job.id) == changed
    assert [await tagged(jobs, tag) for tag in "abcz"] == [[job.id], [], [job.id], []]
    *_, event = await jobs.events(job.id)
    assert (event.event, event.before, event.state, event.at) == ("job.tagged", None, S.QUEUED, 30)
    assert event.fields == {"by": "ann", "tags": ["a", "c"]}
    assert (await jobs.change_tags(job.id, ("a",), ("b",), 40, "ann")).tags == ("a", "c")
    assert len(await jobs.events(job.id)) == 2


async def test_a_job_has_thirty_two_tags_at_most_however_they_come(jobs: Store) -> None:
    job = await jobs.upload(tags=tuple(f"t{n}" for n in range(30)))
    calls = [jobs.change_tags(job.id, (f"new{n}",), (), 30, "ann") for n in range(5)]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(one, Conflict) for one in ended) == 3
    assert len((await jobs.get(job.id)).tags) == 32
    assert len(await jobs.events(job.id)) == 3
    swapped = await jobs.change_tags(job.id, ("one", "two"), ("t0", "t1"), 30, "ann")
    assert len(swapped.tags) == 32


async def test_who_waits_is_listed_for_a_service(jobs: Store) -> None:
    for user, service in (("bob", "s"), ("ann", "s"), ("ann", "s"), ("zoe", "other")):
        await jobs.upload(user, service)
    for service, most, each_most, found in (
        ("s", 10, 10, {"ann": 2, "bob": 1}),
        ("s", 10, 1, {"ann": 1, "bob": 1}),
        ("s", 1, 10, {"ann": 2}),
        ("none", 10, 10, {}),
    ):
        assert await jobs.waiting_users(service, most, each_most) == found
