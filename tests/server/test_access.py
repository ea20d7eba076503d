"""Who may do what: every route and page for every role, for own jobs, others' and none.

Made from the tables of routes: one that is new is asked for, too. One whose path, query or body has
something that is not filled in here makes a test fail.
"""

import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from server.api.routes import ROUTES as API
from server.domain.access import Area
from server.domain.permits import Shows
from server.web.routes import ROUTES as PAGES
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.webhook_receiver import receiving
from tests.server.access import (
    BOUNDARY,
    LATER,
    OPERATOR,
    PAGE,
    PEOPLE,
    PRINCIPALS,
    Crowd,
    Said,
    crowd,
    formed,
    words,
)

__all__ = ["OPERATOR", "PRINCIPALS", "crowd"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVER = '[server]\nwebhook_allow = ["127.0.0.0/8"]'
MARK: Final = "annssecretmark"
"""In everything that was given to the server for ann."""
NONE: Final = 10**9
ROUTES: Final[tuple[Any, ...]] = (*API, *PAGES)
OF_A_JOB: Final[list[Any]] = [one for one in ROUTES if "{id}" in one.path]
NOT_HERE: Final = ("/login", "/login/once", "/logout")
"""Their own answers are about what is sent there."""

# -- what each role may do, said a second time

USERS: Final = {"ann", "reader", "sender", "bob"}
PORTALS: Final = {"portal", "stranger"}
OPERATORS: Final = {"admin", "watcher"}
TOKENS: Final = USERS | PORTALS | OPERATORS | {"node"}
RULES: Final[dict[Area, tuple[set[str], str]]] = {
    Area.OPEN: ({*PEOPLE, ""}, ""),
    Area.CALLER: (TOKENS, ""),
    Area.STATUS: (TOKENS, "read"),
    Area.JOBS: (USERS | PORTALS | OPERATORS, "manage"),
    Area.METRICS: (OPERATORS | {"scraper"}, "read"),
    Area.AGENTS: (OPERATORS, "operate"),
    Area.SERVICES: (OPERATORS, "operate"),
    Area.TICKETS: (PORTALS | OPERATORS, "submit"),
    Area.ADMIN: (OPERATORS, "admin"),
}
"""Who is let in, with which scope."""
LACK: Final = {
    "reader": {"submit", "manage"},
    "sender": {"read", "manage"},
    "watcher": {"submit", "manage", "admin"},
}
"""Scopes of its role that a token does not have."""
NEEDS: Final = {
    **dict.fromkeys(("POST /upload", "POST /api/v1/schedules"), "submit"),
    **dict.fromkeys(("GET /api/v1/webhook-secret", "POST /api/v1/webhook-secret"), "submit"),
    **dict.fromkeys(("GET /new", "POST /new", "POST /new/check", "GET /new/sent"), "submit"),
    **dict.fromkeys(("POST /api/v1/jobs/{id}/links", "POST /jobs/{id}/share"), "read"),
}
"""Scopes of routes that are not as their area and method say."""


def name_of(route: Any) -> str:
    return f"{route.method} {route.path}"


def may(who: str, route: Any) -> bool:
    who, (roles, scope) = who.partition(" as ")[0], RULES[route.area]
    if route.area is Area.JOBS and route.method == "GET":
        scope = "read"
    return who in roles and NEEDS.get(name_of(route), scope) not in LACK.get(who, ())


def modes(route: Any) -> Iterator[tuple[str, dict[str, str]]]:
    yield route.method, {}
    yield ("HEAD", {}) if route.method == "GET" else (route.method, {"Expect": "100-continue"})


# -- what is asked for


Owned = dict[str, list[str]]
"""What belongs to ann, by the parameters of paths that name it."""


def paths(owned: Owned, template: str) -> Iterator[str]:
    names = re.findall(r"{(\w+)}", template)
    missing = set(names) - owned.keys()
    assert not missing, f"{template}: say in this test what {missing} may be"
    for chosen in product(*(owned[name] for name in names)):
        yield template.format_map(dict(zip(names, chosen, strict=True)))


def one_path(route: Any, job_id: int = NONE, file: str = "a.txt") -> str:
    values: Owned = {key: ["1"] for key in ("schedule", "name", "token", "user", "version")}
    values |= {"id": [str(job_id)], "path": [file], "file": ["start.js"]}
    (path,) = paths(values, route.path)
    return path


QUERIES: Final = {
    **dict.fromkeys(("user", "user_id"), ("ann",)),
    **dict.fromkeys(("name", "tag", "idempotency_key"), (MARK,)),
    "state": ("Queued", "Completed"),
    **dict.fromkeys(("ended", "retired"), ("1",)),
    "of": ("ann", "portal"),
    "principal": ("portal",),
}
"""What is tried for a parameter of a query, one at a time, beside the request without any."""
VOLATILE: Final = (
    *("queue", "counts", "in_work", "history", "oldest_queued_at"),
    *("health", "running", "load", "last_heard_at"),
)
"""What changes by itself."""


def writes(process: FakeProcess) -> None:
    process.log(stdout=f"{MARK}\n".encode(), stderr=b"trouble\n")
    process.write(f"{MARK}.txt", MARK.encode())
    process.write("a.html", f"<p>{MARK}".encode())
    process.finish()


async def owned_by_ann(crowd: Crowd, maker: str) -> Owned:
    """Jobs that have ended, that wait, and with children; a webhook; a schedule; a token."""
    place, key = crowd.place, f"{MARK}-{crowd.place.service}"
    place.does(writes)
    words = {"name": MARK, "tags": MARK, "meta": json.dumps({"note": MARK})}
    async with receiving() as receiver:
        hook, headers = receiver.url(f"/{MARK}"), {"Idempotency-Key": key}
        done = await crowd.upload(maker, "ann", headers, callback_url=hook, **words)
        assert done.status == 201, done
        await place.job(done.document["id"])
        await receiver.arrived(1)
    jobs = [done.document["id"], await crowd.job(maker, "ann", array="2", **words)]
    nightly = {"user_id": "ann", "service": place.service, "cron": "0 0 1 1 *"}
    body = formed(nightly | words | {"name": key})
    schedule = await crowd.ask(maker, "POST", "/api/v1/schedules", body, **BOUNDARY)
    assert schedule.status == 201, schedule
    token = await place.api("POST", "/tokens", {"name": f"t-{key}", "role": "user"})
    return {
        "id": [str(job) for job in jobs],
        "path": ["a.html", f"{MARK}.txt"],
        "schedule": [str(schedule.document["id"])],
        "name": [place.service],
        "token": [token["id"]],
        "file": ["start.js"],
        "user": ["ann"],
        "version": ["0"],
    }


async def state(crowd: Crowd, owned: Owned) -> dict[str, Any]:
    """Everything that nobody else may change."""
    found: dict[str, Any] = {}
    for path in (
        *(f"/jobs/{job}" for job in owned["id"]),
        *(f"/jobs/{job}/events" for job in owned["id"]),
        *(f"/services/{one}" for one in owned["name"]),
        "/tokens",
    ):
        document = await crowd.place.api("GET", path)
        found[path] = {name: one for name, one in document.items() if name not in VOLATILE}
    listed = (await crowd.place.api("GET", "/schedules"))["items"]
    found["schedules"] = [one for one in listed if str(one["id"]) in owned["schedule"]]
    return found


def bodies(owned: Owned, service: str) -> dict[str, list[Any]]:
    """What is sent to each operation of the API that takes a body."""
    bulk = [
        {"action": action, **which, **({"tags": ["stolen"]} if action == "tag" else {})}
        for action in ("cancel", "retry", "tag", "delete")
        for which in ({"ids": [*map(int, owned["id"])]}, {"filter": {"user": "ann"}})
    ]
    fields = {"user_id": "ann", "service": service, "name": "stolen"}
    after = {"inputs_from": ",".join(owned["id"])}
    return {
        "POST /upload": [formed(fields), formed(fields | after)],
        "POST /api/v1/schedules": [formed(fields | {"cron": "0 0 1 1 *"})],
        "POST /api/v1/jobs/bulk": bulk,
        "POST /api/v1/tickets": [{"user_id": "ann", "service": service}],
        "POST /api/v1/jobs/{id}/links": [{"what": "job"}, {"what": "result"}],
        "PUT /api/v1/services/{name}": [{"timeout": "1h"}],
        "POST /api/v1/agents/{name}": [{"action": "drain"}],
        "POST /api/v1/tokens": [{"name": "stolen", "role": "operator"}],
        "POST /api/v1/tokens/{token}/rotate": [{}],
        "POST /api/v1/forget-user": [{"user": "ann"}, {"user": "ann", "dry_run": True}],
    }


Request = tuple[str, str, Any, dict[str, str]]


def of_the_api(document: Any, owned: Owned, service: str) -> Iterator[tuple[str, Request]]:
    """Each way to ask for what is ann's, of an operation."""
    known = bodies(owned, service)
    for template, operations in document["paths"].items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            name = f"{method.upper()} {template}"
            content = operation.get("requestBody", {}).get("content", {})
            assert not content or name in known, f"{name}: say in this test what it takes"
            headers = BOUNDARY if "multipart/form-data" in content else {}
            queries = [""]
            for parameter in operation.get("parameters", ()):
                if parameter.get("in") == "query":
                    word = parameter["name"]
                    queries += [f"?{word}={value}" for value in QUERIES.get(word, ())]
            for path in paths(owned, template):
                for query, body in product(queries, known.get(name, [None])):
                    yield name, (method.upper(), path + query, body, dict(headers))


def of_pages(owned: Owned, service: str) -> Iterator[tuple[Any, Request]]:
    fields = [(name, text) for name, text in words(service).items() if name != "all"]
    ids = [(name, job) for name in ("ids", "id") for job in owned["id"]]
    form = urlencode([*fields, *ids])
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    for route in PAGES:
        if route.path.startswith(("/assets/", *NOT_HERE)):
            continue
        more = (None, PAGE) if route.method == "GET" else (form, PAGE | kind)
        for path in paths(owned, route.path):
            yield route, (route.method, path, *more)


# -- the tests


OPEN: Final = {
    *("/", "/health", "/livez", "/readyz", "/openapi.json", "/swagger", "/swagger/{file}"),
    *("/login", "/login/once", "/logout", "/assets/{version}/{path}"),
}


def area_of(route: Any) -> Area:
    """By its path."""
    word = re.sub("^/api/v1", "", route.path).split("/")[1]
    if route.path in OPEN:
        return Area.OPEN
    if word == "services":
        return Area.STATUS if route.method == "GET" else Area.SERVICES
    return {
        **dict.fromkeys(("whoami", "account", "login-links"), Area.CALLER),
        **dict.fromkeys(("agents", "status", "charts", "users"), Area.AGENTS),
        **dict.fromkeys(("tokens", "audit", "forget-user"), Area.ADMIN),
        "metrics": Area.METRICS,
        "tickets": Area.TICKETS,
        "settings": Area.SERVICES,
    }.get(word, Area.JOBS)


async def test_every_route_is_asked_for_and_of_the_area_that_it_is_about(crowd: Crowd) -> None:
    assert [name_of(one) for one in ROUTES if one.area is not area_of(one)] == []
    document = (await crowd.ask("bob", "GET", "/openapi.json")).document
    described = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }
    served = {
        (route.method, route.resource.canonical)
        for route in crowd.place.server.application.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }
    assert served <= described | {(one.method, one.path) for one in PAGES}


async def test_a_role_gets_no_further_than_its_routes(crowd: Crowd) -> None:
    wrong = []
    for route in ROUTES:
        if route.path in NOT_HERE:
            continue
        shown = PAGE if route in PAGES else {}
        path = one_path(route)
        for who, (method, how) in product((*PEOPLE, ""), modes(route)):
            said = await crowd.ask(who, method, path, **shown, **how)
            login = said.status == 303 and said.headers["location"].startswith("/login?next=")
            if may(who, route):
                fits = said.status not in (401, 403) and said.status < 500 and not login
            elif who:
                why = "lacks the scope" if who in RULES[route.area][0] else "is for the roles"
                why = "not_allowed" if who == "scraper" else why
                fits = said.status == 403 and (method == "HEAD" or why in said.text)
            elif route in PAGES and route.method == "GET":
                fits = login
            else:
                fits = said.status == 401
            wrong += [] if fits else [(who, method, path, how, said.status)]
    assert wrong == []


ATTACKS: Final = {
    "ann": ("bob", "stranger", "stranger as ann", "node", "portal", "portal as ann"),
    "portal": ("bob", "stranger", "stranger as ann", "node"),
}
"""Who made the jobs of ann -> who else asks for them."""


@pytest.mark.parametrize("maker", ATTACKS)
async def test_nobody_reads_or_changes_what_is_not_theirs(crowd: Crowd, maker: str) -> None:
    owned = await owned_by_ann(crowd, maker)
    document = (await crowd.ask("bob", "GET", "/openapi.json")).document
    numbers = "|".join(owned["id"])
    hidden = re.compile(rf'"job_id":\s*({numbers})\b|/jobs/({numbers})\b(?!/)')
    before = await state(crowd, owned)
    asked, reached = set[str](), set[str]()

    def check(who: str, request: Request, said: Said) -> None:
        case = (who, *request[:2], said)
        path = request[1]
        assert said.status < 500, case
        if MARK not in path:
            assert MARK not in str(said), case
        elif said.status < 400 and "json" in said.headers.get("content-type", ""):
            # A request's own words may be repeated; nothing must be found by them.
            found = said.document.get("items") or said.document.get("ids")
            assert not found, case
        if request[0] == "GET" and said.status < 400:
            assert not hidden.search(said.text), case

    for name, request in of_the_api(document, owned, crowd.place.service):
        if request[0] == "GET":
            said = await crowd.ask(maker, "GET", request[1])
            asked.add(name)
            reached |= {name} if said.status not in (400, 403, 404) else set()
        for who in ATTACKS[maker]:
            method, path, body, headers = request
            check(who, request, await crowd.ask(who, method, path, body, **headers))
    for route, request in of_pages(owned, crowd.place.service):
        method, path, body, headers = request
        if method == "GET":
            owner = maker if may(maker, route) else "admin"
            said = await crowd.ask(owner, "GET", path, **headers)
            asked.add(name_of(route))
            reached |= {name_of(route)} if said.status not in (400, 401, 403, 404) else set()
        if route.path == "/live":
            continue  # it says nothing until something happens
        for who in ATTACKS[maker]:
            said = await crowd.ask(who, method, path, body, **headers)
            check(who, request, said)
            if "{id}" in route.path:
                assert said.status == (404 if may(who, route) else 403), (who, path, said.status)
    assert await state(crowd, owned) == before
    # The requests are such that whoever may see the jobs gets something by them.
    of_operators = re.compile("agents|tokens|audit|statistics|status|metrics")
    missing = {name for name in asked - reached if not of_operators.search(name)}
    assert missing <= {"GET /new/sent"}


async def test_a_job_of_somebody_else_is_as_if_there_were_none(crowd: Crowd) -> None:
    hidden = await crowd.job("ann", "ann")

    def without_ids(said: Said, job_id: int) -> Any:
        given = {k: v for k, v in said.headers.items() if k not in ("date", "x-request-id")}
        given.pop("content-length", None)
        text = said.text.replace(said.headers["x-request-id"], "")
        return said.status, given, re.sub(rf"\b{job_id}\b", "N", text)

    for route in OF_A_JOB:
        queries = ("", "?wait=60") if "wait" in getattr(route, "query", ()) else ("",)
        for who, query, (method, how) in product(("bob", "portal"), queries, modes(route)):
            said = []
            for job_id in (NONE, hidden):
                path = one_path(route, job_id) + query
                said.append(await crowd.ask(who, method, path, **how))
            case = who, method, route.path, how
            assert said[1].status == 404, case
            assert without_ids(said[1], hidden) == without_ids(said[0], NONE), case
    job = await crowd.place.api("GET", f"/jobs/{hidden}")
    assert (job["status"], job["cancel_requested_at"]) == ("Queued", None)


async def test_who_may_see_a_job_may_do_everything_with_it(crowd: Crowd) -> None:
    crowd.place.does(writes)
    ended = await crowd.made("portal", "ann")
    await crowd.place.job(ended)
    for route, who in product(OF_A_JOB, ("ann", "portal", "portal as ann", "admin", "reader")):
        if not may(who, route):
            continue
        for method, how in modes(route):
            changes = route.method != "GET"
            # A child has no deletion, and a job no children: of those there is a parent.
            more = {"array": "2"} if route.path.endswith("/children") else {}
            own = await crowd.job("portal", "ann", **more) if changes or more else ended
            path = one_path(route, own, "a.html")
            form = {"tags": "x", "what": "job", "expires_in": "1h"} if route in PAGES else None
            body = urlencode(form) if form and changes else None
            kind = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
            said = await crowd.ask(who, method, path, body, **kind, **how)
            fine = (200, 201, 202, 204, 303, 409)
            assert said.status in fine, (who, method, path, said.status, said.text[:500])


# -- permits


GOOD: Final = {
    Shows.JOB: {
        *("", "/events", "/logs", "/result", "/bundle", "/files", "/files/{path}"),
        *("page", "page/log", "page/files", "page/files/{path}", "page/rendered/{path}"),
        *("live", "live/log"),
    },
    Shows.RESULT: {"/result", "/bundle"},
    Shows.FILE: {"/files/{path}"},
}
"""What a link to it opens, of one job."""


def short(path: str) -> str:
    for start, name in (("/api/v1/jobs/{id}", ""), ("/jobs/{id}", "page"), ("/live/{id}", "live")):
        if path.startswith(start):
            return name + path.removeprefix(start)
    return f"else {path}"


@pytest.mark.parametrize("shows", list(Shows))
async def test_a_link_is_good_for_its_routes_and_for_no_other(crowd: Crowd, shows: Shows) -> None:
    """Whatever token is beside it: whoever shows a link is nobody else."""
    crowd.place.does(writes)
    own, other = [await crowd.made("ann", "ann") for _ in range(2)]
    await crowd.place.job(own)
    asked = {"what": shows} | ({"path": "a.html"} if shows is Shows.FILE else {})
    made = await crowd.ask("ann", "POST", f"/api/v1/jobs/{own}/links", asked)
    link = made.document["link"]

    def to(job_id: int, file: str = "a.html") -> str:
        return f"{one_path(route, job_id, file)}?link={link}"

    for route in ROUTES:
        good = route.method == "GET" and short(route.path) in GOOD[shows]
        refused = [to(other)] + ([] if good else [to(own)])
        if shows is Shows.FILE and good:
            refused += [to(own, file) for file in ("a.txt", "a", "A.html")]
        for url, who in product(refused, ("", "admin")):
            said = await crowd.ask(who, route.method, url)
            assert said.status == 403, (url, said)
            assert "and nothing else" in said.text, url
        for method in ("GET", "HEAD") if good else ():
            said = await crowd.ask("", method, to(own))
            assert said.status in (200, 204), (method, to(own), said)


async def test_a_ticket_is_good_for_no_other_route(crowd: Crowd) -> None:
    """Nor does a token beside it help."""
    asked = {"user_id": "ann", "service": crowd.place.service}
    made = await crowd.ask("portal", "POST", "/api/v1/tickets", asked)
    text = made.document["ticket"]
    for route in ROUTES:
        if name_of(route) == "POST /upload":
            continue
        path = one_path(route)
        for who in ("", "admin"):
            said = await crowd.ask(who, route.method, f"{path}?ticket={text}")
            assert said.status == 403, path
            assert "an upload ticket is for POST /upload" in said.text, path
    said = await crowd.ask("", "POST", f"/upload?ticket={text}", formed(LATER), **BOUNDARY)
    assert said.status == 201, said
