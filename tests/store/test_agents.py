"""What every store must remember of the agents."""

from dataclasses import replace

import pytest

from server.domain.agents import REPLACED, AgentRecord, Contact
from server.domain.choose import Candidate
from server.domain.service import Service
from server.store.identity import new_start
from shared.clock import SECOND
from shared.ids import AttemptKey, Start
from shared.sqlite.database import Database
from shared.wire import AgentState
from tests.kit.store import Calls

ADDRESS = "http://north:9000"
NORTH = Contact("north", "ferryman", ADDRESS)
SOUTH = Contact("south", "ferryman", "http://south:9000")
SETTINGS = {"north": ADDRESS}
BOTH = SETTINGS | {"south": SOUTH.address}


async def reached(
    agents: Calls, contact: Contact = NORTH, settings: dict[str, str] = SETTINGS, at: int = 50
) -> AgentRecord:
    record: AgentRecord = await agents.contacted(contact, settings, at)
    return record


def shown(records: list[AgentRecord]) -> list[tuple[str, str, str]]:
    return [(one.name, one.id, str(one.state)) for one in records]


async def test_agents_of_the_settings_and_of_jobs_appear_by_themselves(agents, jobs):
    await jobs.claimed("gone")
    first = await agents.register([NORTH], 40)
    records = await agents.register([NORTH], 50)
    assert records == first
    assert shown(records) == [("gone", "name:gone", "active"), ("north", "name:north", "active")]
    assert [(one.kind, one.address, one.created_at) for one in records] == [
        ("", "", 40),
        ("ferryman", ADDRESS, 40),
    ]


async def test_an_agent_is_known_by_its_own_id_from_its_first_contact_on(agents, jobs):
    await agents.register([NORTH], 40)
    job = await jobs.claimed("north")
    said = replace(
        NORTH, agent_id="x1", version="1.2", resources={"slots": 4}, labels={"gpu": "a100"}
    )
    record = await reached(agents, said)
    assert record.id == "x1"
    assert (record.version, record.resources) == ("1.2", {"slots": 4})
    assert record.labels == {"gpu": "a100"}
    assert (record.created_at, record.last_heard_at) == (40, 50)
    assert await agents.all_agents() == [record]
    attempt = await jobs.attempt(AttemptKey(job.id, 1))
    assert (attempt.agent, attempt.agent_id) == ("north", "x1")


@pytest.mark.parametrize("said", [None, "", "name:other", "x" * 65, "a b"])
async def test_an_agent_without_an_id_of_its_own_has_one_by_its_name(agents, said):
    for _ in range(2):
        assert (await reached(agents, replace(NORTH, agent_id=said))).id == "name:north"


async def test_an_older_agent_that_learns_to_say_its_id_is_the_same(agents: Calls) -> None:
    await reached(agents)
    await agents.set_state("name:north", AgentState.DRAINING, "drained")
    record = await reached(agents, replace(NORTH, agent_id="x1"))
    assert (record.id, record.state, record.message) == ("x1", AgentState.DRAINING, "drained")
    assert (await reached(agents)).id == "x1"  # and one that forgets it again, too
    assert shown(await agents.all_agents()) == [("north", "x1", "draining")]


@pytest.mark.parametrize("address", [ADDRESS, "http://elsewhere:9000"])
async def test_a_known_id_under_a_new_name_is_a_rename_with_all_its_jobs(agents, jobs, address):
    await reached(agents, replace(NORTH, agent_id="x1"))
    await agents.set_state("x1", AgentState.DRAINING, "drained")
    job, other = await jobs.claimed("north"), await jobs.claimed("west")
    south = replace(SOUTH, address=address, agent_id="x1")
    await agents.register([south], 60)
    record = await reached(agents, south, {"south": address}, 70)
    assert (record.id, record.name, record.state) == ("x1", "south", AgentState.DRAINING)
    assert [one.name for one in await agents.all_agents()] == ["south", "west"]
    assert (await jobs.get(job.id)).agent == "south"
    assert (await jobs.attempt(AttemptKey(job.id, 1))).agent == "south"
    assert (await jobs.get(other.id)).agent == "west"


async def test_names_that_change_places_in_the_settings_keep_jobs_apart(agents, jobs):
    places = {name: Contact(name, "ferryman", f"http://{name}:9000") for name in "abc"}
    await agents.register(list(places.values()), 40)
    held_by = {}
    for name, contact in places.items():
        await reached(agents, replace(contact, agent_id=f"id-{name}"))
        held_by[name] = (await jobs.claimed(name)).id
    # a and b have exchanged their names; c is d now, and the address of the new c is new.
    now = [
        replace(places["a"], name="b"),
        replace(places["b"], name="a"),
        replace(places["c"], name="d"),
        Contact("c", "ferryman", "http://new:9000"),
    ]
    await agents.register(now, 50)
    for contact, agent_id in zip(now, ("id-a", "id-b", "id-c", "id-new"), strict=True):
        settings = {one.name: one.address for one in now}
        await reached(agents, replace(contact, agent_id=agent_id), settings)
    assert shown(await agents.all_agents()) == [
        ("a", "id-b", "active"),
        ("b", "id-a", "active"),
        ("c", "id-new", "active"),
        ("d", "id-c", "active"),
    ]
    names = {name: (await jobs.get(job_id)).agent or "" for name, job_id in held_by.items()}
    assert names == {"a": "b", "b": "a", "c": "d"}
    for job_id, name in zip(held_by.values(), names.values(), strict=True):
        assert (await jobs.attempt(AttemptKey(job_id, 1))).agent == name


async def test_a_name_that_is_in_use_is_not_given_by_address(agents, jobs):
    for contact in (NORTH, SOUTH):
        await reached(agents, replace(contact, agent_id=f"id-{contact.name}"), BOTH)
    job = await jobs.claimed("north")
    # The agent south is no longer in the settings, and has its name until it is retired.
    there = [("north", "id-north", "active"), ("south", "id-south", "active")]
    assert shown(await agents.register([replace(NORTH, name="south")], 50)) == there
    assert (await jobs.get(job.id)).agent == "north"
    # Two names for one address: which of them it is, is not known.
    twice = [replace(NORTH, name="x"), replace(NORTH, name="y")]
    named = [("x", "name:x", "active"), ("y", "name:y", "active")]
    assert shown(await agents.register(twice, 60)) == there + named
    west = replace(NORTH, name="west", address="http://west:9000")
    assert ("west", "name:west", "active") in shown(await agents.register([west], 70))
    last = shown(await agents.register([replace(west, name="w"), replace(SOUTH, name="z")], 80))
    assert ("z", "id-south", "active") in last
    # An id that was made from the name stays with it.
    assert {("w", "name:w", "active"), ("west", "name:west", "active")} < set(last)


async def test_another_id_under_a_known_name_retires_the_agent_before(agents: Calls) -> None:
    await reached(agents, replace(NORTH, agent_id="x1"))
    record = await reached(agents, replace(NORTH, agent_id="x2"), at=70)
    assert (record.id, record.state, record.created_at) == ("x2", AgentState.ACTIVE, 70)
    old, fresh = await agents.all_agents()
    assert (old.id, old.state, old.message) == ("x1", AgentState.RETIRED, REPLACED)
    assert fresh == record
    back = await reached(agents, replace(NORTH, agent_id="x1"), at=80)
    assert (back.id, back.state) == ("x1", AgentState.ACTIVE)
    both = [("north", "x1", "active"), ("north", "x2", "retired")]
    assert shown(await agents.all_agents()) == both
    await agents.set_state("x1", AgentState.DRAINING, "for repair")
    after = await reached(agents, replace(NORTH, agent_id="x3"), at=90)
    assert (after.state, after.message) == (AgentState.DRAINING, "for repair"), "as the one before"


async def test_two_names_with_one_id_are_two_agents(agents, jobs):
    """A copied data folder, or one agent under two names: neither takes jobs of the other."""
    await agents.register([NORTH, SOUTH], 40)
    job = await jobs.claimed("north")
    for _ in range(2):
        for contact, agent_id in ((NORTH, "x1"), (SOUTH, "name:south")):
            assert (await reached(agents, replace(contact, agent_id="x1"), BOTH)).id == agent_id
    assert (await jobs.get(job.id)).agent == "north"


@pytest.mark.parametrize("how", ["edited", "replaced", "retired"])
async def test_an_id_whose_name_is_in_the_settings_is_given_to_no_other_name(agents, jobs, how):
    settings = dict(BOTH)
    await reached(agents, replace(NORTH, agent_id="x1"), settings)
    if how == "replaced":
        await reached(agents, replace(NORTH, agent_id="x2"), settings)
    elif how == "retired":
        await agents.set_state("x1", AgentState.RETIRED, "by an operator")
    else:
        settings["north"] = "http://moved:9000"
    await reached(agents, replace(SOUTH, agent_id="x3"), settings)
    job, before = await jobs.claimed("north"), await agents.all_agents()
    record = await reached(agents, replace(SOUTH, agent_id="x1"), settings)
    assert (record.id, await agents.all_agents()) == ("x3", before)
    assert (await jobs.get(job.id)).agent == "north"


async def test_unreachable_time_only_grows_until_the_agent_is_reached(agents: Calls) -> None:
    await reached(agents)
    for seconds, kept in ((50.0, 50.0), (20.0, 50.0), (60.5, 60.5)):
        await agents.add_unreachable({"name:north": seconds, "nobody": 5.0})
        assert (await agents.all_agents())[0].unreachable_s == kept


async def test_an_agent_that_is_not_active_any_more_gets_no_jobs_however_the_claim_came_about(
    agents, jobs
):
    await reached(agents, replace(NORTH, agent_id="x1"))
    candidates = [Candidate("north", 4), Candidate("unknown", 0)]
    for state in (AgentState.DRAINING, AgentState.LOST, AgentState.RETIRED):
        await jobs.upload()
        await agents.set_state("x1", state, "")
        assert await jobs.claim_fairly(Service("s"), candidates, 10, 20) == []
    await agents.set_state("x1", AgentState.RETIRED, REPLACED)
    await reached(agents, replace(NORTH, agent_id="x2"))
    assert len(await jobs.claim_fairly(Service("s"), candidates, 10, 20)) == 3


async def test_a_start_is_higher_than_any_before_and_than_that_of_a_copy(database: Database):
    now = 1_764_003_600 * SECOND
    starts = [await database.write(new_start, at, "a") for at in (now, now, now - 90 * SECOND)]
    first = 1_764_003_600
    assert starts == [Start(first, "a"), Start(first + 1, "a"), Start(first + 2, "a")]
    # The copy that was put back is from before, and its next start is later.
    assert (await database.write(new_start, now + 60 * SECOND, "b")).number == first + 60
