"""Parameters of queries: on every route, one that means nothing there is refused."""

from __future__ import annotations

import re

import pytest
import pytest_asyncio

from server.api.routes import ROUTES
from server.http.route import Route
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(module_folder):
    async with driving(module_folder, FakeOrchestrator()) as caller:
        yield caller


def path_of(route: Route) -> str:
    return re.sub(r"{\w+}", "1", route.path.replace("{stream}", "stdout"))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_a_misspelt_parameter_is_refused_with_the_nearest_name(caller, route) -> None:
    known = next(iter(route.parameters), None)
    wrong = "nonsense" if known is None else f"{known}x"
    url = f"{caller.url}{path_of(route)}?{wrong}=1"
    async with caller.session.request(route.method, url) as answer:
        said = await answer.json()
    assert answer.status == 400, said
    if route.fields_in_query:
        return  # it needs a form first
    assert (said["code"], said["part"]) == ("unknown_parameter", wrong)
    assert (said.get("detail") or said["message"]).endswith(
        "there are none" if known is None else f"did you mean {known}?"
    )


async def test_a_parameter_is_given_once(caller) -> None:
    for path in ("/api/v1/jobs?state=Failed&state=Running", "/upload?user_id=a&user_id=b"):
        method = "POST" if "upload" in path else "GET"
        async with caller.session.request(method, f"{caller.url}{path}") as answer:
            said = await answer.json()
        assert (answer.status, said["code"]) == (400, "repeated_parameter"), said


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("agents?retired=yes", "invalid_retired"),
        ("tokens?ended=2", "invalid_ended"),
        ("jobs?limit=0", "invalid_limit"),
        ("jobs?since=yesterday", "invalid_since"),
        ("events?wait=inf", "invalid_wait"),
        ("events?wait=1_0", "invalid_wait"),
    ],
)
async def test_a_value_that_means_nothing_is_refused(caller, query, code) -> None:
    async with caller.session.get(f"{caller.url}/api/v1/{query}") as answer:
        said = await answer.json()
    assert (answer.status, said["code"]) == (400, code), said
