"""``/openapi.json``: everything that there is, and what each thing means.

That answers are as it says is looked at in every test that has a server in its process, see
``tests/kit/described.py``.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from server.api import openapi
from server.api.openapi_document import TAGS, describe, openapi_path, path_names
from server.api.routes import ROUTES
from server.api.texts import TEXTS
from server.domain.schedules import NOT_REPEATED
from server.domain.upload_fields import NEEDED, OPTIONAL
from server.http.params import Param
from server.http.route import Route
from server.settings.tables import ServiceTable
from tests.kit.described import followed
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.kit.waiting import until

DOCUMENT: Any = json.loads(describe(ROUTES, "1.2.3"))
WITH_TOKENS: Any = json.loads(describe(ROUTES, "1.2.3", tokens=True))
each_route = each("route", ROUTES)

OPERATIONS = frozenset(
    {
        "downloads_download",
        "downloads_partial",
        "downloads_result",
        "jobs_cancel",
        "jobs_delete",
        "jobs_events",
        "jobs_page",
        "jobs_read",
        "jobs_terminate",
        "openapi_asset",
        "openapi_document",
        "openapi_page",
        "service_agents",
        "service_health",
        "service_ping",
        "service_services",
        "upload_upload",
    }
)
"""Of the first release: functions of generated clients have these names."""


def is_valid(schema: Any, value: Any) -> bool:
    return bool(Draft202012Validator(schema).is_valid(value))


def operation(route: Route, document: Any = DOCUMENT) -> Any:
    return document["paths"][openapi_path(route.path)][route.method.lower()]


def parameters(route: Route) -> dict[tuple[str, str], Any]:
    found = [followed(DOCUMENT, one) for one in operation(route).get("parameters", [])]
    return {(one["in"], one["name"]): one for one in found}


def parts(found: Any) -> Iterator[Any]:
    """Every object in the document."""
    yield found
    for one in found.values() if isinstance(found, dict) else found:
        if isinstance(one, dict | list):
            yield from parts(one)


@each_route
def test_a_route_says_what_it_does_and_for_whom(route) -> None:
    found = operation(route)
    assert len(found["summary"]) > 10
    assert "For " in found["description"]
    assert found["tags"][0] in TAGS
    for name in path_names(route):
        assert parameters(route)["path", name]["required"] is True
    assert {name for where, name in parameters(route) if where == "query"} == (
        set(route.query) | ({"fields"} if route.fields_in_query else set())
    )


@each_route
def test_a_parameter_says_what_it_means_and_may_be(route) -> None:
    for (where, name), one in parameters(route).items():
        assert len(one["description"]) > 5, (where, name)
        schema = one["schema"]
        assert {"type", "enum", "anyOf"} & schema.keys(), (where, name)
        Draft202012Validator.check_schema(schema)
        examples = [one["example"]] if "example" in one else one["schema"].get("examples", [])
        examples += [schema["default"]] if "default" in schema else []
        for example in examples:
            assert not example or is_valid(schema, example), (where, name)
    for name, param in route.query.items():
        assert isinstance(param, Param), f"{name} is only a text: say which values it takes"


def test_every_refusal_has_a_code_with_a_meaning() -> None:
    found = DOCUMENT["components"]["responses"]["Refused"]
    for route in ROUTES:
        assert followed(DOCUMENT, operation(route)["responses"]["default"]) == found
    for shape in ("application/problem+json", "application/json"):
        schema = followed(DOCUMENT, found["content"][shape]["schema"])
        assert is_valid(schema, found["content"][shape]["example"])


@each_route
def test_a_body_has_an_example_that_fits(route) -> None:
    if route.body is None:
        assert "requestBody" not in operation(route)
        return
    (body,) = operation(route)["requestBody"]["content"].values()
    Draft202012Validator.check_schema(body["schema"])
    for name, field in body["schema"].get("properties", {}).items():
        assert len(field.get("description", "")) > 5, name
    if route.body.media == "application/json":
        assert is_valid(body["schema"], body["example"])


def test_whether_a_token_is_needed_is_said() -> None:
    for route in ROUTES:
        if operation(route)["security"] == []:
            assert operation(route, WITH_TOKENS)["security"] == []
        else:
            assert {} in operation(route)["security"]
            assert {} not in operation(route, WITH_TOKENS)["security"]
            for one in operation(route, WITH_TOKENS)["security"]:
                assert set(one) <= set(WITH_TOKENS["components"]["securitySchemes"])


def test_references_lead_somewhere_and_names_are_one_things_only() -> None:
    for one in parts(DOCUMENT):
        if isinstance(one, dict) and isinstance(one.get("$ref"), str):
            assert followed(DOCUMENT, one)
        if isinstance(one, dict) and "operationId" in one and "parameters" in one:
            assert one["operationId"]
    names = [operation(route)["operationId"] for route in ROUTES]
    doubled = {name for name in names if names.count(name) > 1}
    assert doubled == set()
    assert set(names) >= OPERATIONS
    for one in parts(DOCUMENT):
        for link in one.get("links", {}).values() if isinstance(one, dict) else ():
            if isinstance(link, dict) and "operationId" in link:
                assert link["operationId"] in names


def test_every_field_of_every_document_says_what_it_means() -> None:
    for model, schema in DOCUMENT["components"]["schemas"].items():
        for name, field in schema.get("properties", {}).items():
            assert len(field.get("description", "")) > 5, f"{model}.{name}"


def test_a_text_that_is_for_many_documents_is_needed() -> None:
    said = {
        field.get("description")
        for schema in DOCUMENT["components"]["schemas"].values()
        for field in schema.get("properties", {}).values()
    }
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
        if route.path == "/upload":
            assert fields == {*NEEDED, *OPTIONAL, "file", "bundle"}
        else:
            assert fields - {"cron", "time_zone"} == (
                {*NEEDED, *OPTIONAL, "file", "bundle"} - set(NOT_REPEATED)
            )
        for name, field in schema["properties"].items():
            if field.get("format") != "binary" and field["type"] == "string":
                assert bool(field["example"]) == (name in schema["required"]), name
        assert parameters(route)["query", "fields"]["example"] == {}
        assert schema["properties"]["file"]["items"]["example"] == ""
    keys = [one for (_, name), one in parameters(forms[0]).items() if name == "Idempotency-Key"]
    assert [one["example"] for one in keys] == [""]


@each_route
def test_the_page_fills_in_no_parameter_that_may_be_left_out(route) -> None:
    """A list would be filtered by what nobody asked for."""
    for (where, name), one in parameters(route).items():
        assert where == "path" or not one.get("example"), name


async def test_it_is_served_to_everybody_and_says_where_a_token_goes(tmp_path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), tokens=["a-token-of-somebody"]) as caller:
        for path in ("/swagger", "/swagger/start.js", "/swagger/swagger-ui.css", "/openapi.json"):
            assert (await caller.get(path))[0] == 200
        assert (await caller.get("/swagger/../settings.py"))[0] in (401, 404)
        text = (await caller.get("/openapi.json"))[2]
        assert (await caller.get("/openapi.json"))[2] == text
    document = json.loads(text)
    assert document["openapi"] == "3.1.0"
    assert re.fullmatch(r"\d+\.\d+.*", document["info"]["version"])
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["paths"]["/api/v1/jobs"]["get"]["security"] == [{"token": []}]


async def test_it_is_made_once_for_all_who_ask_and_holds_up_no_upload(
    tmp_path, monkeypatch
) -> None:
    begun, end = threading.Semaphore(0), threading.Event()

    def slow(*_: Any, **__: Any) -> bytes:
        begun.release()
        assert end.wait(100), "nobody let it end"
        return b"{}"

    monkeypatch.setattr(openapi, "describe", slow)
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        gate = caller.server.gate
        asked = [asyncio.create_task(caller.get("/openapi.json")) for _ in range(40)]
        try:
            await until(lambda: gate._handling == len(asked))
            asked.pop().cancel()  # for the others, it goes on
            assert await asyncio.wait_for(caller.upload(), 50) == 1
        finally:
            end.set()
        answers = await asyncio.gather(*asked)
    assert {(status, text) for status, _, text in answers} == {(200, b"{}")}
    assert begun.acquire(blocking=False)
    assert not begun.acquire(blocking=False)


async def test_another_method_is_405_with_those_that_there_are(tmp_path) -> None:
    methods: dict[str, set[str]] = {}
    for route in ROUTES:
        with_head = {"GET", "HEAD"} if route.method == "GET" else {route.method}
        methods.setdefault(re.sub(r"{\w+}", "1", route.path), set()).update(with_head)
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        for path, there in methods.items():
            async with caller.session.request("PATCH", f"{caller.url}{path}") as answer:
                said = await answer.json()
            assert (answer.status, said["code"]) == (405, "method_not_allowed"), path
            assert set(answer.headers["Allow"].split(",")) == there, path


async def test_a_parameter_that_is_too_long_is_refused(tmp_path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        for route in ROUTES:
            for name, param in route.query.items():
                assert isinstance(param, Param)
                if route.method == "GET" and (most := param.schema.get("maxLength")):
                    path = re.sub(r"{\w+}", "1", openapi_path(route.path))
                    status, _, body = await caller.get(f"{path}?{name}={'1' * (most + 1)}")
                    code = json.loads(body)["code"]
                    assert (status, code) == (400, f"invalid_{name}"), (path, name)


async def test_what_is_no_number_is_named(tmp_path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        for path in ("/download/abc", "/api/v1/jobs/abc", "/terminate/abc"):
            method = "POST" if "terminate" in path else "GET"
            async with caller.session.request(method, f"{caller.url}{path}") as answer:
                said = await answer.json()
            assert (answer.status, said["code"]) == (404, "job_not_found")
            assert "'abc' is not the number of a job" in (said.get("detail") or said["message"])
