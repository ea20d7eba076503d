"""The agents' records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from server.domain.agents import REMOVED, REPLACED, AgentRecord, Contact, id_by_name
from server.domain.errors import NotFound
from server.store.changes import HELD, TOTALS
from server.store.records import insert, reader
from shared.clock import Micros
from shared.sql import Tx
from shared.wire import AgentState

_ALL: Final = "SELECT * FROM agents ORDER BY name, created_at, id"
_CURRENT: Final = """
    SELECT * FROM agents WHERE name = :name AND (state != 'retired' OR message != :replaced)
    ORDER BY CASE state WHEN 'retired' THEN 1 ELSE 0 END, created_at DESC LIMIT 1
"""
"""The agent that has the name now, retired by an operator or not."""
_REGISTER_NAMED_BY_JOBS: Final = f"""
    INSERT INTO agents (id, name, kind, address, state, created_at)
    SELECT DISTINCT 'name:' || agent, agent, '', '', 'active', CAST(:at AS BIGINT) FROM jobs
    WHERE {HELD} AND agent IS NOT NULL AND agent NOT IN (
        SELECT name FROM agents WHERE state != 'retired'
    )
    ON CONFLICT (id) DO UPDATE SET state = 'active', message = ''
"""  # noqa: S608 - no user input


def all_agents(tx: Tx) -> list[AgentRecord]:
    """Each agent, the retired ones included, by name. Of those with the same name at most one is
    not retired.
    """
    return [_record(row) for row in tx.rows(_ALL)]


def find(tx: Tx, name: str) -> AgentRecord:
    """The agent with this name, or else this id. Raises NotFound."""
    records = all_agents(tx)
    named = [one for one in records if one.name == name]
    matches = named or [one for one in records if one.id == name]
    if not matches:
        raise NotFound("agent_not_found", f"this server knows no agent {name[:64]}")
    return max(
        matches, key=lambda one: (one.state is not AgentState.RETIRED, one.message != REPLACED)
    )


def register(tx: Tx, agents: Sequence[Contact], at: Micros) -> list[AgentRecord]:
    """Make rows for the agents of the settings, and for agents that only jobs name. An agent that
    was retired because it was taken out of the settings, and is back, is active again. If an agent
    has another name at the same address, its jobs get that name. Returns as :func:`all_agents`.
    """
    _rename_by_address(tx, agents)
    for agent in agents:
        there = current(tx, agent.name)
        if there is None:
            _add(tx, id_by_name(agent.name), agent, at)
        elif there.state is AgentState.RETIRED and there.message == REMOVED:
            set_state(tx, there.id, AgentState.ACTIVE, "")
    tx.rows(_REGISTER_NAMED_BY_JOBS, {"at": at})
    return all_agents(tx)


def contacted(tx: Tx, contact: Contact, settings: Collection[str], at: Micros) -> AgentRecord:
    """An agent was reached. If it has a new name, its jobs get that name. If another agent has
    its name now, the former one is retired. A lost agent is active again.

    Args:
        settings: the names of all agents of the settings. An id that one of them has said is
            given to no other name: whoever says it under another keeps its own, or gets one
            made of its name.

    Returns:
        Its record.
    """
    there, state, message = current(tx, contact.name), AgentState.ACTIVE, ""
    known = _with_id(tx, contact.own_id) if contact.own_id else None
    own_id = contact.own_id
    if known is not None and known.name != contact.name and known.name in settings:
        own_id = None  # a copy of another agent's folder, or that agent itself
    if there is not None:
        if there.state is AgentState.DRAINING or there.state is AgentState.RETIRED:
            state, message = there.state, there.message
        if own_id is None:
            own_id = there.id
        elif there.id == id_by_name(contact.name) != own_id:
            _take_id(tx, there, own_id, known is not None)
        elif there.id != own_id:
            set_state(tx, there.id, AgentState.RETIRED, REPLACED)
    own_id = own_id or id_by_name(contact.name)
    known = _with_id(tx, own_id)
    if known is None:
        _add(tx, own_id, contact, at)
    elif known.name != contact.name:
        _rename_in_jobs(tx, known.name, contact.name)
        if known.state is AgentState.DRAINING:
            state, message = known.state, known.message
    values = asdict(contact) | {"state": state, "message": message, "last_heard_at": at}
    del values["agent_id"]
    values |= {name: json.dumps(values[name]) for name in ("resources", "labels")}
    setting = ", ".join(f"{name} = :{name}" for name in values)
    sql = f"UPDATE agents SET {setting}, unreachable_s = 0 WHERE id = :id RETURNING *"  # noqa: S608
    [row] = tx.rows(sql, values | {"id": own_id})
    return _record(row)


def set_state(
    tx: Tx, agent_id: str, state: AgentState, message: str, *, idle: bool = False
) -> AgentRecord | None:
    """Change its state. ``idle``: only if it has no jobs. None: it has jobs."""
    rows = tx.rows(
        f"""
        UPDATE agents SET state = :state, message = :message
        WHERE id = :id AND {_IDLE if idle else "1 = 1"}
        RETURNING *
        """,  # noqa: S608 - no user input
        {"id": agent_id, "state": state, "message": message},
    )
    return _record(rows[0]) if rows else None


def add_unreachable(tx: Tx, unreachable_s: Mapping[str, float]) -> None:
    """Keep for how long agents, by id, could not be reached; less than is known is ignored."""
    sql = "UPDATE agents SET unreachable_s = :seconds WHERE id = :id AND unreachable_s < :seconds"
    tx.many(sql, [{"id": one, "seconds": seconds} for one, seconds in unreachable_s.items()])


_IDLE: Final = f"""
    NOT EXISTS (SELECT 1 FROM jobs WHERE {HELD} AND jobs.agent = agents.name)
"""  # noqa: S608 - no user input


def _rename_by_address(tx: Tx, agents: Sequence[Contact]) -> None:
    """Rename agents that have another name at the same address in the settings, and their jobs.

    All at once, because two agents may have exchanged their names. If one of them was renamed
    first, the jobs of both would have the same name.
    """
    names: dict[str, list[str]] = {}
    for agent in agents:
        names.setdefault(agent.address, []).append(agent.name)
    current = [_record(row) for row in tx.rows(_ALL) if row["state"] != AgentState.RETIRED]
    by_address = Counter(one.address for one in current)
    moving = {
        one.name: (one, names[one.address][0])
        for one in current
        if by_address[one.address] == len(names.get(one.address, ())) == 1
        and names[one.address] != [one.name]
        and one.id != id_by_name(one.name)
    }
    stay = {one.name for one in current if one.name not in moving}
    while blocked := [old for old, (_, name) in moving.items() if name in stay]:
        for old in blocked:
            del moving[old]
            stay.add(old)
    for one, _ in moving.values():  # no two have the same name meanwhile
        _rename(tx, one.id, one.name, f":{one.id}")
    for one, name in moving.values():
        _rename(tx, one.id, f":{one.id}", name)


def _add(tx: Tx, agent_id: str, of: Contact, at: Micros) -> None:
    values = {"id": agent_id, "name": of.name, "kind": of.kind, "address": of.address}
    insert(tx, "agents", values | {"state": AgentState.ACTIVE, "created_at": at})


def _rename(tx: Tx, agent_id: str, old: str, new: str) -> None:
    tx.rows("UPDATE agents SET name = :new WHERE id = :id", {"id": agent_id, "new": new})
    _rename_in_jobs(tx, old, new)


def current(tx: Tx, name: str) -> AgentRecord | None:
    rows = tx.rows(_CURRENT, {"name": name, "replaced": REPLACED})
    return _record(rows[0]) if rows else None


def _with_id(tx: Tx, agent_id: str) -> AgentRecord | None:
    rows = tx.rows("SELECT * FROM agents WHERE id = :id", {"id": agent_id})
    return _record(rows[0]) if rows else None


def _take_id(tx: Tx, there: AgentRecord, own_id: str, taken: bool) -> None:
    """Give an agent that had an id made of its name the id that it says now. ``taken``: there is a
    record with that id.
    """
    values = {"old": there.id, "id": own_id, "name": there.name}
    tx.rows(
        f"""
        UPDATE attempts SET agent_id = :id WHERE agent_id = :old AND (job_id, number) IN (
            SELECT id, attempt FROM jobs WHERE {HELD} AND agent = :name
        )
        """,  # noqa: S608 - no user input
        values,
    )
    if taken:
        tx.rows("DELETE FROM agents WHERE id = :old", values)
    else:
        tx.rows("UPDATE agents SET id = :id WHERE id = :old", values)


def _rename_in_jobs(tx: Tx, old: str, new: str) -> None:
    """Rename an agent in the jobs that it has. Jobs that have ended keep the old name."""
    values = {"old": old, "new": new}
    tx.rows(
        f"""
        UPDATE attempts SET agent = :new WHERE (job_id, number) IN (
            SELECT id, attempt FROM jobs WHERE {HELD} AND agent = :old
        )
        """,  # noqa: S608 - no user input
        values,
    )
    tx.rows(f"UPDATE jobs SET agent = :new WHERE {HELD} AND agent = :old", values)  # noqa: S608
    tx.memory.pop(TOTALS, None)


_record: Final = reader(
    AgentRecord, {"state": AgentState, "labels": json.loads, "resources": json.loads}
)
