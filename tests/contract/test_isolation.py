"""Two users and two portals against every operation of ``/openapi.json``.

Generated from the document: an operation that is new is called, too. One whose path or body has
something that this test cannot fill in makes it fail, until it can.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from server.web.routes import ROUTES as PAGES
from shared.principals import Principal, Role
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_http import Answer, ask
from tests.kit.server_http import ServerClient, driving
from tests.kit.webhook_receiver import WebhookReceiver, receiving

ANN, PORTAL, BOB, STRANGER, ADMIN, NODE = (
    Principal("ann-laptop", Role.USER, "ann"),
    Principal("portal", Role.PORTAL),
    Principal("bob-laptop", Role.USER, "bob"),
    Principal("other-portal", Role.PORTAL),
    Principal("admin", Role.OPERATOR),
    Principal("node-1", Role.AGENT),
)
EVERYBODY: Final = {f"the-token-of-{one.name}": one for one in (ANN, PORTAL, BOB, STRANGER, ADMIN)}
EVERYBODY["the-token-of-node-1"] = NODE
MARK: Final = "annssecretmark"
"""In everything that was given to the server for ann."""
STRANGERS: Final = ((BOB, ""), (STRANGER, ""), (STRANGER, "ann"), (NODE, ""))
VOLATILE: Final = (
    *("queue", "counts", "in_work", "history", "oldest_queued_at"),
    *("health", "running", "load", "last_heard_at"),  # what an agent has now
)
"""What changes by itself."""
ATTACKS: Final = {
    "of a user": (
        ANN,
        ((BOB, ""), (STRANGER, ""), (STRANGER, "ann"), (NODE, ""), (PORTAL, ""), (PORTAL, "ann")),
    ),
    "of a portal": (PORTAL, ((BOB, ""), (STRANGER, ""), (STRANGER, "ann"), (NODE, ""))),
}
"""Who made the jobs of ann, and who else asks for them, acting as whom."""
QUERIES: Final = {
    "user": ("ann",),
    "user_id": ("ann",),
    "name": (MARK,),
    "tag": (MARK,),
    "idempotency_key": (MARK,),
    "state": ("Queued", "Completed"),
    "ended": ("1",),
    "retired": ("1",),
    "of": ("ann", "portal"),
    "principal": ("portal",),
}
"""What is tried for a parameter of a query, one at a time, beside the request without any."""
FORM: Final = "multipart/form-data; boundary=b"


@dataclass(frozen=True)
class Owned:
    """What belongs to ann, by the parameters of paths that name it."""

    values: dict[str, list[str]]
    jobs: list[int]

    def paths(self, template: str) -> Iterator[str]:
        names = re.findall(r"{(\w+)}", template)
        missing = set(names) - self.values.keys()
        assert not missing, f"{template}: say in this test what {missing} may be"
        for chosen in product(*(self.values[name] for name in names)):
            path = template
            for name, value in zip(names, chosen, strict=True):
                path = path.replace(f"{{{name}}}", value)
            yield path


def form(**fields: str) -> str:
    parts = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in fields.items()
    )
    name = fields.get("name", "x")
    files = "".join(
        f'--b\r\nContent-Disposition: form-data; name="f"; filename="{file}"\r\n\r\n{name}\r\n'
        for file in ("run.sh", f"{name}.txt")
    )
    return f"{parts}{files}--b--\r\n"


class World:
    def __init__(self, client: ServerClient, receiver: WebhookReceiver) -> None:
        self.port = int(client.url.rpartition(":")[2])
        self.client, self.receiver = client, receiver

    async def ask(
        self, who: Principal, method: str, path: str, body: Any = "", **headers: str
    ) -> Answer:
        headers["Authorization"] = f"Bearer the-token-of-{who.name}"
        if not isinstance(body, str):
            body = json.dumps(body)
            headers["Content-Type"] = "application/json"
        return await ask(self.port, method, path, body, **headers)

    async def made(self, who: Principal, path: str, **fields: str) -> int:
        headers = {"Content_Type": FORM}
        if path == "/upload":
            headers["Idempotency_Key"] = f"{fields['name']}{fields.get('array', '')}"
        answer = await self.ask(who, "POST", path, form(**fields), **headers)
        assert answer.status == 201, answer.body
        return int(answer.document["id"])

    async def until_ended(self, job_id: int) -> None:
        seen = "Queued"
        while seen != "Completed":
            path = f"/api/v1/jobs/{job_id}?wait=20&seen={seen}"
            seen = (await self.ask(ADMIN, "GET", path)).document["status"]

    async def delivered(self, job_id: int) -> None:
        """Once its webhook is through, which said how the job ended."""
        await self.receiver.arrived(1)
        while True:
            answer = await self.ask(ADMIN, "GET", f"/api/v1/jobs/{job_id}")
            (found,) = answer.document["webhooks"]
            if found["state"] == "delivered":
                return

    async def state(self, owned: Owned) -> dict[str, Any]:
        """Everything that nobody of the attackers may change."""
        found: dict[str, Any] = {}
        for path in (
            *(f"/api/v1/jobs/{job}" for job in owned.jobs),
            *(f"/api/v1/jobs/{job}/events" for job in owned.jobs),
            *(f"/api/v1/services/{one}" for one in owned.values["name"]),
            *(f"/api/v1/agents/{one}" for one in owned.values["name"]),
            "/api/v1/tokens?ended=1",
        ):
            document = (await self.ask(ADMIN, "GET", path)).document
            for volatile in VOLATILE:
                document.pop(volatile, None)
            found[path] = document
        listed = (await self.ask(ADMIN, "GET", "/api/v1/schedules")).document["items"]
        found["schedules"] = [one for one in listed if str(one["id"]) in owned.values["schedule"]]
        return found


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    settings: dict[str, Any] = {"webhook_allow": ("127.0.0.0/8",)}
    async with (
        receiving() as receiver,
        driving(tmp_path, FakeOrchestrator(), principals=EVERYBODY, **settings) as client,
    ):
        yield World(client, receiver)


async def owned_by_ann(world: World, maker: Principal) -> Owned:
    """Jobs that have ended, that wait, and with children; a webhook; a schedule; a token."""
    fields = {
        "user_id": "ann",
        "service": "my_service",
        "name": MARK,
        "tags": MARK,
        "meta": json.dumps({"note": MARK}),
    }
    hook = world.receiver.url(f"/{MARK}")
    done = await world.made(maker, "/upload", callback_url=hook, **fields)
    await world.until_ended(done)
    await world.delivered(done)
    later = {"not_before": "2100-01-01T00:00:00Z"}
    jobs = [done, await world.made(maker, "/upload", array="2", **later, **fields)]
    schedule = await world.made(maker, "/api/v1/schedules", cron="0 0 1 1 *", **fields)
    token = await world.ask(ADMIN, "POST", "/api/v1/tokens", {"name": "ann", "role": "user"})
    values = {
        "id": [str(job) for job in jobs],
        "path": ["output.txt", f"{MARK}.txt"],
        "schedule": [str(schedule)],
        "name": ["my_service"],
        "token": [token.document["id"]],
        "file": ["start.js"],
    }
    return Owned(values, jobs)


def bodies(owned: Owned) -> dict[tuple[str, str], list[Any]]:
    """What is sent to each operation that takes a body."""
    where = {"user": "ann"}
    bulk = [
        {"action": action, **which, **({"tags": ["stolen"]} if action == "tag" else {})}
        for action in ("cancel", "retry", "tag", "delete")
        for which in ({"ids": owned.jobs}, {"filter": where})
    ]
    fields = {"user_id": "ann", "service": "my_service", "name": "stolen"}
    after = {"inputs_from": ",".join(map(str, owned.jobs))}
    return {
        ("POST", "/upload"): [form(**fields), form(**fields, **after)],
        ("POST", "/api/v1/schedules"): [form(**fields, cron="0 0 1 1 *")],
        ("POST", "/api/v1/jobs/bulk"): bulk,
        ("POST", "/api/v1/tickets"): [{"user_id": "ann", "service": "my_service"}],
        ("POST", "/api/v1/jobs/{id}/links"): [{"what": "job"}, {"what": "result"}],
        ("PUT", "/api/v1/services/{name}"): [{"timeout": "1h"}],
        ("POST", "/api/v1/agents/{name}"): [{"action": "drain"}],
        ("POST", "/api/v1/tokens"): [{"name": "stolen", "role": "operator"}],
        ("POST", "/api/v1/tokens/{token}/rotate"): [{}],
        ("POST", "/api/v1/forget-user"): [{"user": "ann"}, {"user": "ann", "dry_run": True}],
    }


def requests(
    document: dict[str, Any], owned: Owned
) -> Iterator[tuple[str, str, str, Any, dict[str, str]]]:
    """Operation, method, path, body and headers, for each way to ask for what is ann's."""
    known = bodies(owned)
    for template, operations in document["paths"].items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            method = method.upper()
            content = operation.get("requestBody", {}).get("content", {})
            if content:
                assert (method, template) in known, f"{method} {template}: say here what it takes"
            headers = {"Content_Type": FORM} if "multipart/form-data" in content else {}
            queries = [""]
            for parameter in operation.get("parameters", ()):
                if parameter.get("in") == "query":
                    name = parameter["name"]
                    queries += [f"?{name}={value}" for value in QUERIES.get(name, ())]
            for path in owned.paths(template):
                for query, body in product(queries, known.get((method, template), [""])):
                    yield f"{method} {template}", method, path + query, body, headers


@pytest.mark.parametrize("whose", ATTACKS)
async def test_nobody_reads_or_changes_what_is_not_theirs(world: World, whose: str) -> None:
    maker, attackers = ATTACKS[whose]
    owned = await owned_by_ann(world, maker)
    document = (await world.ask(BOB, "GET", "/openapi.json")).document
    before = await world.state(owned)
    asked, reached = set[str](), set[str]()
    hidden = re.compile(rf'"job_id":\s*({"|".join(map(str, owned.jobs))})\b')
    for operation, method, path, body, headers in requests(document, owned):
        asked.add(operation)
        if method == "GET":
            answer = await world.ask(maker, method, path)
            reached |= set() if answer.status in (400, 403, 404) else {operation}
        for who, user in attackers:
            acting = {"Ferryman_Act_As": user} if user else {}
            answer = await world.ask(who, method, path, body, **headers, **acting)
            case = (who.name, user, method, path, said(answer))
            assert answer.status < 500, case
            assert not hidden.search(said(answer)), case
            if MARK not in path:
                assert MARK not in said(answer), case
            elif answer.status < 400:
                # A request's own words may be repeated; nothing must be found by them.
                found = answer.document.get("items") or answer.document.get("ids")
                assert not found, case
    assert await world.state(owned) == before
    # The requests are such that whoever may see the jobs gets something by them.
    reads = {one for one in asked if one.startswith("GET")}
    missing = {
        one
        for one in reads - reached
        if not re.search("agents|tokens|audit|statistics|status|metrics", one)
    }
    assert missing == set()


def said(answer: Answer) -> str:
    return f"{answer.headers}{answer.body.decode('latin-1')}"


async def test_every_route_is_in_the_document(world: World) -> None:
    """So that the test above calls it."""
    document = (await world.ask(BOB, "GET", "/openapi.json")).document
    described = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }
    served = {
        (route.method, route.resource.canonical)
        for route in world.client.server.application.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }
    assert served <= described | {(one.method, one.path) for one in PAGES}
