"""Who may do what over HTTP: every route for every role, with and without ``Expect``."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from server.api.routes import ROUTES
from server.domain.access import Area
from server.http.route import Route
from shared.principals import Principal, Role
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_http import Answer, ask, holding
from tests.kit.server_http import ServerClient, driving
from tests.kit.waiting import eventually

PRINCIPALS = {
    principal.name: principal
    for principal in (
        Principal("ann-laptop", Role.USER, "ann"),
        Principal("bob-laptop", Role.USER, "bob"),
        Principal("portal", Role.PORTAL),
        Principal("other-portal", Role.PORTAL),
        Principal("admin", Role.OPERATOR),
        Principal("node-1", Role.AGENT),
        Principal("scraper", Role.METRICS),
    )
}
EVERYBODY = (*PRINCIPALS, "anonymous")
ROLES = tuple(name for name in PRINCIPALS if name != "scraper")
EXPECT = ("", "100-continue")
EXPECT_UNKNOWN = "200-maybe"
ANNS, UNKNOWN = 1, 9
OF_A_JOB = [route for route in ROUTES if "{id}" in route.path and route.area is Area.JOBS]
OF_OPERATORS = ("/reload",)
"""What operators alone may do with a job, or with a server."""
FORM = "multipart/form-data; boundary=b"


def field(name: str, value: str) -> str:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'


RUN = (
    '--b\r\nContent-Disposition: form-data; name="file"; filename="run.sh"\r\n\r\n'
    "echo hello\n\r\n--b--\r\n"
)


class World:
    """A server, and everybody who has a token for it."""

    def __init__(self, caller: ServerClient) -> None:
        self.caller, self.jobs = caller, caller.server.context.jobs
        self.read_only: dict[tuple[str, str], int] = {}
        """Jobs that tests which only read share, by submitter and user."""
        self.port = int(caller.url.rpartition(":")[2])

    async def ask(
        self, name: str, method: str, path: str, body: str = "", expect: str = "", **headers: str
    ) -> Answer:
        if name != "anonymous":
            headers["Authorization"] = f"Bearer {token(name)}"
        if expect:
            headers["Expect"] = expect
        return await ask(self.port, method, path, body, **headers)

    async def upload(self, name: str, user: str, query: str = "", **headers: str) -> Answer:
        body = field("user_id", user) + field("service", "my_service") + RUN
        return await self.ask(name, "POST", f"/upload{query}", body, Content_Type=FORM, **headers)

    async def job(self, name: str, user: str, state: str = "Completed", **headers: str) -> int:
        """The id of a job that this principal uploaded for the user, once it is in the state."""
        answer = await self.upload(name, user, **headers)
        assert answer.status == 201, answer.body
        job_id = int(answer.document["id"])
        seen = "Queued"
        while seen != state:
            path = f"/api/v1/jobs/{job_id}?wait=20&seen={seen}"
            seen = (await self.ask("admin", "GET", path)).document["status"]
        return job_id

    async def list(self, name: str, query: str = "") -> list[int]:
        """Ids, of all pages."""
        ids, cursor = [], ""
        while True:
            answer = await self.ask(name, "GET", f"/api/v1/jobs?limit=2{query}{cursor}")
            assert answer.status == 200, answer.body
            ids += [item["id"] for item in answer.document["items"]]
            if answer.document["next"] is None:
                return ids
            cursor = f"&cursor={answer.document['next']}"


def token(name: str) -> str:
    return f"the-token-of-{name}"


@contextlib.asynccontextmanager
async def serving(tmp_path, then: str = "Completed", **settings) -> AsyncIterator[World]:
    principals = {token(name): principal for name, principal in PRINCIPALS.items()}
    client = FakeOrchestrator(then=then)
    async with driving(tmp_path, client, principals=principals, **settings) as caller:
        yield World(caller)


@pytest.fixture
async def world(tmp_path):
    async with serving(tmp_path) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(module_folder):
    """A server for what changes nothing, with a job of Ann's, which is its only one."""
    async with serving(module_folder) as found:
        assert await found.job("ann-laptop", "ann") == ANNS
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def full(module_folder):
    """A server for tests that make jobs, and ask for no others."""
    async with serving(module_folder / "full") as found:
        yield found


def methods(route: Route) -> tuple[str, ...]:
    return ("GET", "HEAD") if route.method == "GET" else (route.method,)


def path_of(route: Route, job_id: int) -> str:
    path = route.path.replace("{id}", str(job_id)).replace("{stream}", "stdout")
    path = path.replace("{path}", "output.txt")
    return re.sub(r"{\w+}", "1", path)


def without_ids(answer: Answer, job_id: int) -> tuple[int, dict[str, str], str]:
    """What an answer says, but for which request and which job it is about."""
    headers = {
        name: answer.headers[name] for name in answer.headers.keys() - {"date", "x-request-id"}
    }
    body = answer.body.decode().replace(str(answer.headers["x-request-id"]), "")
    return answer.status, headers, re.sub(rf"\b{job_id}\b", "N", body)


# -- one job


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("route", OF_A_JOB, ids=lambda route: f"{route.method} {route.path}")
async def test_a_job_of_somebody_else_is_as_if_there_were_none(shared, route) -> None:
    world, own = shared, ANNS
    queries = ("", "?wait=60") if "wait" in route.query else ("",)
    for name, query, expect, method in itertools.product(
        ("bob-laptop", "portal"), queries, EXPECT, methods(route)
    ):
        unknown, hidden = [
            await world.ask(name, method, path_of(route, job_id) + query, expect=expect)
            for job_id in (UNKNOWN, own)
        ]
        assert hidden.status == 404
        assert without_ids(hidden, own) == without_ids(unknown, UNKNOWN)
    job = await world.jobs.get(own)
    assert (job.cancel_requested_at, job.ended) == (None, True)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("expect", EXPECT)
@pytest.mark.parametrize("route", OF_A_JOB, ids=lambda route: f"{route.method} {route.path}")
async def test_who_may_see_a_job_may_do_everything_with_it(full, route, expect) -> None:
    world = full
    for submitter, user, viewer in (
        ("ann-laptop", "ann", "ann-laptop"),
        ("portal", "ann", "ann-laptop"),
        ("portal", "ann", "portal"),
        ("portal", "ann", "admin"),
    ):
        if route.method != "GET":
            own = await world.job(submitter, user)
        elif (submitter, user) in world.read_only:
            own = world.read_only[submitter, user]
        else:
            own = world.read_only[submitter, user] = await world.job(submitter, user)
        for method in methods(route):
            answer = await world.ask(viewer, method, path_of(route, own), expect=expect)
            assert answer.status in (200, 201, 204, 409), (viewer, method, answer.body)


@pytest.mark.parametrize("expect", EXPECT)
async def test_a_running_job_is_cancelled_only_by_who_may_see_it(tmp_path, expect) -> None:
    async with serving(tmp_path, then="Running") as world:
        for number, path in enumerate(("/terminate/{}", "/api/v1/jobs/{}/cancel")):
            own = await world.job("portal", "ann", "Running")
            for name in ("bob-laptop", "other-portal"):
                answer = await world.ask(name, "POST", path.format(own), expect=expect)
                assert answer.status == 404
            assert (await world.jobs.get(own)).cancel_requested_at is None
            name = ("ann-laptop", "portal")[number]
            assert (await world.ask(name, "POST", path.format(own), expect=expect)).status == 200


# -- areas


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_a_role_gets_no_further_than_its_routes(shared, route) -> None:
    world = shared
    allowed = {
        Area.OPEN: EVERYBODY,
        Area.CALLER: ROLES,
        Area.STATUS: ROLES,
        Area.METRICS: ("admin", "scraper"),
        Area.JOBS: ("ann-laptop", "bob-laptop", "portal", "other-portal", "admin"),
        Area.AGENTS: ("admin",),
        Area.SERVICES: ("admin",),
        Area.TICKETS: ("portal", "other-portal", "admin"),
        Area.ADMIN: ("admin",),
    }[route.area]
    for name, expect, method in itertools.product(EVERYBODY, EXPECT, methods(route)):
        answer = await world.ask(name, method, path_of(route, UNKNOWN), expect=expect)
        if name in allowed:
            assert answer.status not in (401, 403), name
        else:
            assert answer.status == (401 if name == "anonymous" else 403), (name, answer.body)
            if method != "HEAD":
                assert answer.document["code"] == "not_allowed"


async def test_what_a_token_for_metrics_tried_to_change_is_in_the_trail(world) -> None:
    for method, path in (("POST", "/api/v1/jobs/1/cancel"), ("DELETE", "/api/v1/tokens/1")):
        assert (await world.ask("scraper", method, path)).status == 403
    trail = await world.ask("admin", "GET", "/api/v1/audit")
    assert trail.status == 200, trail.body
    entries = [one for one in trail.document["items"] if one["principal"] == "scraper"]
    assert [one["role"] for one in entries] == ["metrics", "metrics"]


def test_routes_are_of_the_area_that_they_are_about() -> None:
    for route in ROUTES:
        if route.path.endswith(OF_OPERATORS):
            assert route.area in (Area.AGENTS, Area.SERVICES)
        elif "job" in route.path or "load" in route.path or "terminate" in route.path:
            assert route.area is Area.JOBS
        elif "agents" in route.path:
            assert route.area is Area.AGENTS


@pytest.mark.parametrize("expect", [*EXPECT, EXPECT_UNKNOWN])
@pytest.mark.parametrize("path", ["/nowhere", "/api/v1/nowhere", "/upload"])
async def test_where_there_is_no_route_every_request_passes_the_same_way(
    world, path, expect
) -> None:
    with capture_logs() as lines:
        stranger = await world.ask("anonymous", "PUT", path, expect=expect)
        known = await world.ask("portal", "PUT", path, expect=expect)
    assert stranger.status == 401
    missing = 405 if path == "/upload" else 404
    assert known.status == (417 if expect == EXPECT_UNKNOWN else missing)
    assert [line["principal"] for line in lines if line.get("path") == path] == [
        "anonymous",
        "portal",
    ]


async def test_whoever_has_a_token_sees_the_version(world) -> None:
    for name in PRINCIPALS:
        assert (await world.ask(name, "GET", "/health")).document["version"]
    assert set((await world.ask("anonymous", "GET", "/health")).document) == {"status", "database"}


# -- uploads


@pytest.mark.parametrize("expect", EXPECT)
async def test_a_user_cannot_upload_for_another(world, expect) -> None:
    query = "?user_id=bob&service=my_service"
    for name, status in (("ann-laptop", 403), ("node-1", 403), ("anonymous", 401)):
        answer = await world.ask(name, "POST", f"/upload{query}", expect=expect, Content_Type=FORM)
        assert (answer.status, answer.document["code"]) == (status, "not_allowed")
    answer = await world.upload("ann-laptop", "bob")
    assert (answer.status, answer.document["code"]) == (403, "not_allowed")
    # What the form says in the end counts, whatever the head says.
    answer = await world.upload("ann-laptop", "bob", "?user_id=ann")
    assert (answer.status, answer.document["code"]) == (403, "not_allowed")
    assert await world.list("admin") == []


async def test_an_upload_without_a_user_is_of_the_one_who_asks(world) -> None:
    form = field("service", "my_service") + RUN
    for name, headers, user in (
        ("ann-laptop", {}, "ann"),
        ("portal", {"Ferryman-Act-As": "bob"}, "bob"),
    ):
        key = {"Idempotency-Key": f"of-{user}"}
        answer = await world.ask(name, "POST", "/upload", form, Content_Type=FORM, **headers, **key)
        assert answer.status == 201, answer.body
        path = f"/api/v1/jobs/{answer.document['id']}"
        assert (await world.ask("admin", "GET", path)).document["user_id"] == user
        listed = await world.ask(name, "GET", f"/api/v1/jobs?idempotency_key=of-{user}", **headers)
        assert [job["user_id"] for job in listed.document["items"]] == [user]
    for name in ("portal", "admin"):
        answer = await world.ask(name, "POST", "/upload", form, Content_Type=FORM)
        assert (answer.status, answer.document["message"]) == (400, "Missing user_id field")


async def test_an_agent_cannot_upload_whatever_the_head_says(world) -> None:
    answer = await world.ask("node-1", "POST", "/upload", expect="100-continue", Content_Type=FORM)
    assert (answer.status, answer.document["code"]) == (403, "not_allowed")


async def test_a_refused_upload_shows_nothing_of_what_the_other_uploads(tmp_path) -> None:
    fields = field("user_id", "bob") + field("service", "my_service")
    head = (
        f"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\nContent-Type: {FORM}"
        f"\r\nAuthorization: Bearer {token('bob-laptop')}\r\n\r\n{fields}"
    )
    async with (
        serving(tmp_path, uploads_per_user=1) as world,
        holding(world.port, head),
    ):
        await eventually(
            lambda: world.upload("bob-laptop", "bob"),
            lambda it: it.document.get("code") == "too_many_uploads",
        )
        assert (await world.upload("ann-laptop", "bob")).document["code"] == "not_allowed"


async def test_who_uploaded_a_job_is_kept(world) -> None:
    for name, user in (("ann-laptop", "ann"), ("portal", "bob"), ("admin", "cleo")):
        job = await world.jobs.get(await world.job(name, user))
        assert (job.submitted_by, job.user_id) == (name, user)


async def test_a_key_gives_its_job_only_to_who_may_see_it(world) -> None:
    first = await world.job("portal", "ann", Idempotency_Key="k")
    for name, status in (("portal", 201), ("ann-laptop", 201), ("other-portal", 422)):
        answer = await world.upload(name, "ann", Idempotency_Key="k")
        assert answer.status == status
        if status == 201:
            assert answer.document["id"] == first
        else:
            assert answer.document["code"] == "idempotency_key_reused"
            assert not re.search(rf"\b{first}\b", answer.document["message"])
    # Keys are a user's own: bob's is another one.
    assert await world.job("bob-laptop", "bob", Idempotency_Key="k") != first


# -- lists


async def test_a_list_holds_what_its_reader_may_see(world) -> None:
    jobs = {
        (name, user): [await world.job(name, user) for _ in range(2)]
        for name, user in (
            ("ann-laptop", "ann"),
            ("portal", "ann"),
            ("portal", "bob"),
            ("other-portal", "bob"),
            ("admin", "bob"),
        )
    }

    def of(*names: str, user: str = "") -> list[int]:
        return sorted(
            (
                job_id
                for (name, owner), ids in jobs.items()
                for job_id in ids
                if name in names and user in ("", owner)
            ),
            reverse=True,
        )

    everything = of(*PRINCIPALS)
    for name, query, expected in (
        ("admin", "", everything),
        ("admin", "&user=ann", of(*PRINCIPALS, user="ann")),
        ("ann-laptop", "", of(*PRINCIPALS, user="ann")),
        ("ann-laptop", "&user=ann", of(*PRINCIPALS, user="ann")),
        ("ann-laptop", "&user=bob", []),
        ("ann-laptop", "&user=nobody-at-all", []),
        ("bob-laptop", "&state=Completed&service=my_service", of(*PRINCIPALS, user="bob")),
        ("portal", "", of("portal")),
        ("portal", "&user=bob", of("portal", user="bob")),
        ("portal", "&state=Completed", of("portal")),
        ("portal", "&service=my_service&user=ann", of("portal", user="ann")),
        ("portal", "&tag=none", []),
        ("other-portal", "&user=ann", []),
    ):
        assert await world.list(name, query) == expected, (name, query)


async def test_events_are_shown_to_who_may_see_their_job(world) -> None:
    jobs = {
        name: await world.job(name, user)
        for name, user in (("ann-laptop", "ann"), ("portal", "ann"), ("other-portal", "bob"))
    }
    for name, query, expected in (
        ("admin", "", ["ann-laptop", "portal", "other-portal"]),
        ("admin", "?user=bob", ["other-portal"]),
        ("ann-laptop", "", ["ann-laptop", "portal"]),
        ("ann-laptop", "?user=bob", []),
        ("bob-laptop", "", ["other-portal"]),
        ("portal", "", ["portal"]),
        ("other-portal", "?user=ann", []),
    ):
        answer = await world.ask(name, "GET", f"/api/v1/events{query}")
        shown = {event["job_id"] for event in answer.document["items"]}
        assert shown == {jobs[one] for one in expected}, (name, query)


async def test_the_job_of_a_key_is_listed_to_who_may_see_it(world) -> None:
    await world.job("portal", "ann", Idempotency_Key="k")
    for name, count in {
        "ann-laptop": 1,
        "bob-laptop": 0,
        "portal": 1,
        "other-portal": 0,
        "admin": 1,
    }.items():
        answer = await world.ask(name, "GET", "/api/v1/jobs?user=ann&idempotency_key=k")
        assert len(json.loads(answer.body)["items"]) == count, name


async def test_the_log_says_who_made_a_request(world) -> None:
    own = await world.job("ann-laptop", "ann")
    with capture_logs() as lines:
        await world.ask("bob-laptop", "GET", f"/download/{own}")
        await world.ask("portal", "GET", "/nowhere")
        await world.ask("node-1", "GET", "/api/v1/jobs")
        await world.ask("admin", "GET", "/", Host="evil.example")
    assert [(line["principal"], line["status"]) for line in lines if "principal" in line] == [
        ("bob-laptop", 404),
        ("portal", 404),
        ("node-1", 403),
        ("admin", 421),
    ]
    assert "the-token-of" not in str(lines)


# -- a portal that acts as one of its users


async def test_a_portal_that_acts_as_a_user_sees_that_user_only(world) -> None:
    anns = await world.job("portal", "ann")
    bobs = await world.job("portal", "bob")
    own = await world.job("ann-laptop", "ann")
    acting = {"Ferryman_Act_As": "ann"}
    for job_id, status in ((anns, 200), (bobs, 404), (own, 404)):
        answer = await world.ask("portal", "GET", f"/api/v1/jobs/{job_id}", **acting)
        assert answer.status == status
    listed = await world.ask("portal", "GET", "/api/v1/jobs", **acting)
    assert [item["id"] for item in listed.document["items"]] == [anns]
    refused = await world.upload("portal", "bob", **acting)
    assert (refused.status, "for user ann only" in refused.document["message"]) == (403, True)


@pytest.mark.parametrize(
    ("name", "user", "status"),
    [
        ("ann-laptop", "bob", 403),
        ("admin", "ann", 403),
        ("portal", "a b", 400),
        ("portal", "", 400),
    ],
)
async def test_nobody_else_acts_for_a_user(world, name, user, status) -> None:
    answer = await world.ask(name, "GET", "/api/v1/jobs", Ferryman_Act_As=user)
    assert answer.status == status


async def test_the_line_of_a_portals_upload_names_user_service_and_job(world) -> None:
    with capture_logs() as lines:
        job_id = await world.job("portal", "carl")
    (line,) = [one for one in lines if one.get("outcome") == "accepted"]
    said = [line[name] for name in ("event", "principal", "user_id", "service", "job_id")]
    assert said == ["request.done", "portal", "carl", "my_service", job_id]
    (end,) = [one for one in lines if one["event"] == "job.ended"]
    assert (end["user_id"], end["service"], end["job_id"]) == ("carl", "my_service", job_id)
