"""``/openapi.json``: everything that there is, and what each thing means.

That answers are as it says is looked at in every test that has a server in its process, see
``tests/kit/described.py``; here Schemathesis sends requests that it makes from it.
"""

import asyncio
import json
import re
import sys
import threading
import tomllib
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from server.api import openapi
from server.api.openapi_document import TAGS, describe, openapi_path, path_names
from server.api.routes import ROUTES
from server.api.texts import TEXTS
from server.domain.jobs import Attempt, Event, Result
from server.domain.retry import RetryPolicy
from server.domain.schedules import NOT_REPEATED
from server.domain.upload_fields import NEEDED, OPTIONAL
from server.http import documents, event_stream, logs, params
from server.http.params import Param
from server.http.route import Route
from server.settings.tables import ServiceTable
from shared.http.middleware import GATE
from shared.wire import ChildCounts, JobState
from tests.kit.described import followed
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.kit.store import job
from tests.kit.waiting import until

DOCUMENT: Any = json.loads(describe(ROUTES, "1.2.3"))
WITH_TOKENS: Any = json.loads(describe(ROUTES, "1.2.3", tokens=True))
NAMES = [
    (f"{model}.{name}", field.get("description", ""))
    for model, schema in DOCUMENT["components"]["schemas"].items()
    for name, field in schema.get("properties", {}).items()
]
"""Each field of each document, and what is said of it."""
CONFIG = Path(__file__).with_name("schemathesis.toml")
TOKEN = "a-token-of-an-operator"


def operation(route: Route, document: Any = DOCUMENT) -> Any:
    return document["paths"][openapi_path(route.path)][route.method.lower()]


def parameters(route: Route) -> dict[tuple[str, str], Any]:
    found = [followed(DOCUMENT, one) for one in operation(route).get("parameters", [])]
    return {(one["in"], one["name"]): one for one in found}


def objects(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict):
        yield found
    for one in found.values() if isinstance(found, dict) else found:
        if isinstance(one, dict | list):
            yield from objects(one)


@each("route", ROUTES)
def test_a_route_says_what_it_does_and_for_whom_and_what_it_takes(route) -> None:
    found, known = operation(route), parameters(route)
    assert len(found["summary"]) > 10
    assert "For " in found["description"]
    assert found["tags"][0] in TAGS
    for name in path_names(route):
        assert known["path", name]["required"] is True
    of_form = {"fields"} if route.fields_in_query else set()
    assert {name for where, name in known if where == "query"} == set(route.query) | of_form
    for (where, name), one in known.items():
        assert len(one["description"]) > 5, (where, name)
        schema = one["schema"]
        assert {"type", "enum", "anyOf"} & schema.keys(), (where, name)
        Draft202012Validator.check_schema(schema)
        examples = [one["example"]] if "example" in one else schema.get("examples", [])
        examples += [schema["default"]] if "default" in schema else []
        for example in examples:
            assert not example or Draft202012Validator(schema).is_valid(example), (where, name)
        # A list would be filtered by what nobody asked for.
        assert where == "path" or not one.get("example"), f"the page fills in {name}"
    for name, param in route.query.items():
        assert isinstance(param, Param), f"{name} is only a text: say which values it takes"
    if route.body is None:
        assert "requestBody" not in found
        return
    (body,) = found["requestBody"]["content"].values()
    Draft202012Validator.check_schema(body["schema"])
    for name, field in body["schema"].get("properties", {}).items():
        assert len(field.get("description", "")) > 5, name
    if route.body.media == "application/json":
        assert Draft202012Validator(body["schema"]).is_valid(body["example"])


def test_refusals_have_codes_and_tokens_are_asked_for() -> None:
    refused = DOCUMENT["components"]["responses"]["Refused"]
    for shape in ("application/problem+json", "application/json"):
        schema = followed(DOCUMENT, refused["content"][shape]["schema"])
        assert Draft202012Validator(schema).is_valid(refused["content"][shape]["example"])
    schemes = WITH_TOKENS["components"]["securitySchemes"]
    for route in ROUTES:
        found, guarded = operation(route), operation(route, WITH_TOKENS)["security"]
        assert followed(DOCUMENT, found["responses"]["default"]) == refused
        assert ({} in found["security"]) == bool(found["security"])
        assert ({} not in guarded, bool(guarded)) == (True, bool(found["security"])), route.path
        assert {name for one in guarded for name in one} <= set(schemes)


def test_references_lead_somewhere_and_names_are_one_things_only() -> None:
    names = [operation(route)["operationId"] for route in ROUTES]
    assert {name for name in names if names.count(name) > 1} == set()
    for chosen in tomllib.loads(CONFIG.read_text())["operations"]:
        assert set(chosen["include-operation-id"]) <= {*names}
    for one in objects(DOCUMENT):
        if isinstance(one.get("$ref"), str):
            assert followed(DOCUMENT, one)
        for link in one.get("links", {}).values() if isinstance(one.get("links"), dict) else ():
            if isinstance(link, dict) and "operationId" in link:
                assert link["operationId"] in names


def test_every_field_of_every_document_says_what_it_means_and_no_text_is_left_over() -> None:
    assert [name for name, text in NAMES if len(text) <= 5] == []
    said = {text for _, text in NAMES}
    assert [name for name, text in TEXTS.items() if text not in said] == []


def test_the_settings_of_a_service_are_those_of_the_file() -> None:
    body = DOCUMENT["paths"]["/api/v1/services/{name}"]["put"]["requestBody"]["content"]
    fields = body["application/json"]["schema"]["properties"]
    assert fields.keys() == ServiceTable.model_fields.keys()
    for name, field in fields.items():
        assert field["description"], name
        ServiceTable.model_validate({name: field["examples"][0]})


def test_forms_have_every_field_and_fill_nothing_in() -> None:
    """Without an example, Swagger's page sends "string"."""
    forms = [route for route in ROUTES if route.fields_in_query]
    assert {route.path for route in forms} == {"/upload", "/api/v1/schedules"}
    for route in forms:
        (body,) = operation(route)["requestBody"]["content"].values()
        schema = body["schema"]
        fields = set(schema["properties"])
        upload = {*NEEDED, *OPTIONAL, "file", "bundle"}
        repeated = {*upload, "cron", "time_zone"} - {*NOT_REPEATED}
        assert fields == (upload if route.path == "/upload" else repeated)
        for name, field in schema["properties"].items():
            if field.get("format") != "binary" and field["type"] == "string":
                assert bool(field["example"]) == (name in schema["required"]), name
        assert parameters(route)["query", "fields"]["example"] == {}
        assert schema["properties"]["file"]["items"]["example"] == ""
    keys = [one for (_, name), one in parameters(forms[0]).items() if name == "Idempotency-Key"]
    assert [one["example"] for one in keys] == [""]


def unset(document: Any) -> set[str]:
    """Its fields that nothing fills."""
    return {*type(document).model_fields} - {*document.model_fields_set}


def test_every_field_of_a_document_is_filled_by_something() -> None:
    alone = {"history", "attempts", "webhooks"}  # in the document of a single job
    for counts, of_parents in ((None, {"children"}), (ChildCounts(total=2), set())):
        found = documents.job_doc(job(retry=RetryPolicy()), None, batch=counts)
        assert (unset(found), unset(found.links)) == (alone | of_parents, of_parents)
    start: dict[str, Any] = {"state": JobState.COMPLETED, "result": Result("f", 1, "0" * 64)}
    made = Attempt(job_id=1, number=1, agent="a", claimed_at=0, **start)
    attempt = documents.attempt_doc(made, job())
    event = documents.event_doc(Event(1, 1, 0, 1, None, JobState.QUEUED, None, "text"))
    assert [unset(one) for one in (attempt, attempt.links, event)] == [set()] * 3


# -- as it is served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(module_folder):
    async with driving(module_folder, FakeOrchestrator()) as found:
        yield found


async def test_it_is_served_to_everybody_and_says_where_a_token_goes(tmp_path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), tokens=["a-token-of-somebody"]) as caller:
        for path in ("/swagger", "/swagger/start.js", "/swagger/swagger-ui.css"):
            assert (await caller.get(path))[0] == 200
        assert (await caller.get("/swagger/../settings.py"))[0] in (401, 404)
        _, document = await caller.ask("GET", "/openapi.json")
        assert await caller.ask("GET", "/openapi.json") == (200, document)
    assert document["openapi"] == "3.1.0"
    assert re.fullmatch(r"\d+\.\d+.*", document["info"]["version"])
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["paths"]["/api/v1/jobs"]["get"]["security"] == [{"token": []}]


async def test_it_is_made_once_for_all_who_ask_and_holds_up_no_upload(tmp_path, monkeypatch):
    begun, end = threading.Semaphore(0), threading.Event()

    def slow(*_: Any, **__: Any) -> bytes:
        begun.release()
        assert end.wait(100), "nobody let it end"
        return b"{}"

    monkeypatch.setattr(openapi, "describe", slow)
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        gate = caller.server.application[GATE]
        asked = [asyncio.create_task(caller.get("/openapi.json")) for _ in range(40)]
        try:
            await until(lambda: gate._handling == len(asked))
            asked.pop().cancel()  # for the others, it goes on
            assert await asyncio.wait_for(caller.upload(), 50) == 1
        finally:
            end.set()
        answers = await asyncio.gather(*asked)
    assert {(status, text) for status, _, text in answers} == {(200, b"{}")}
    assert [begun.acquire(blocking=False) for _ in range(2)] == [True, False]


@pytest.mark.asyncio(loop_scope="module")
async def test_another_method_is_405_and_a_text_that_is_too_long_or_no_number_is_named(caller):
    methods: dict[str, set[str]] = {}
    for route in ROUTES:
        path = re.sub(r"{\w+}", "1", openapi_path(route.path))
        with_head = {"GET", "HEAD"} if route.method == "GET" else {route.method}
        methods.setdefault(re.sub(r"{\w+}", "1", route.path), set()).update(with_head)
        for name, param in route.query.items():
            assert isinstance(param, Param)
            if route.method == "GET" and (most := param.schema.get("maxLength")):
                status, said = await caller.ask("GET", f"{path}?{name}={'1' * (most + 1)}")
                assert (status, said["code"]) == (400, f"invalid_{name}"), (path, name)
    for path, there in methods.items():
        async with caller.session.request("PATCH", f"{caller.url}{path}") as answer:
            said = await answer.json()
        assert (answer.status, said["code"]) == (405, "method_not_allowed"), path
        assert set(answer.headers["Allow"].split(",")) == there, path


async def run(folder: Path, *arguments: str, tokens: bool) -> str:
    """What it found, as text; empty: nothing."""
    settings: dict[str, Any] = {"tokens": [TOKEN]} if tokens else {}
    async with driving(folder, FakeOrchestrator(), **settings) as caller:
        if tokens:
            caller.session.headers["Authorization"] = f"Bearer {TOKEN}"
        await caller.job(await caller.upload())
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"]
        command += [f"{caller.url}/openapi.json", "--url", caller.url, "--checks", "all"]
        command += ["--no-shrink", "--no-color", "--warnings", "off", *arguments]
        command += ["-H", f"Authorization: Bearer {TOKEN}"] if tokens else []
        how: dict[str, Any] = {"cwd": folder, "stdout": PIPE, "stderr": STDOUT}
        program = await asyncio.create_subprocess_exec(*command, **how)
        said = (await program.communicate())[0].decode()
    return "" if program.returncode == 0 else said


@pytest.fixture
def short_waits(monkeypatch):
    """No request waits long for something to happen."""
    monkeypatch.setattr(params, "MAX_WAIT_S", 0.01)
    monkeypatch.setattr(logs, "KEEPALIVE_S", 0.01)
    monkeypatch.setattr(event_stream, "KEEPALIVE_S", 0.01)


async def test_the_examples_of_the_description_work(tmp_path, short_waits) -> None:
    assert not await run(tmp_path, "--phases", "examples", "--seed", "1", tokens=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tokens", [False, True], ids=["open", "with a token"])
async def test_thousands_of_requests_are_answered_as_described(tmp_path, short_waits, tokens):
    most = ("--max-examples", "8", "--max-time", "150", "--continue-on-failure")
    said = await run(tmp_path, *most, tokens=tokens)
    assert not said, said[said.find("FAILURES") :]
