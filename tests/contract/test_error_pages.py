"""What a browser shows of requests that go wrong."""

from __future__ import annotations

import errno
import re
from http import HTTPStatus
from pathlib import Path

import pytest

from server.http.problems import Refusal
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving

SECRET = "what-nobody-should-see"


@pytest.mark.parametrize(
    ("problem", "status", "title", "code"),
    [
        (RuntimeError(SECRET), 500, "Something went wrong here", "internal_error"),
        (
            OSError(errno.EIO, "Input/output error", SECRET),
            503,
            "This does not work right now",
            "storage_unavailable",
        ),
        (Refusal(HTTPStatus.GONE, "gone", "it was <b>deleted</b>"), 410, "This is gone", "gone"),
    ],
)
async def test_whatever_goes_wrong_is_a_page_with_words_a_code_and_the_request(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
    status: int,
    title: str,
    code: str,
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr("server.web.operators.users.usage_of", fail)
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        url, headers = f"{caller.url}/users/7", {"Accept": "text/html,application/xhtml+xml"}
        async with caller.session.get(url, headers=headers) as answer:
            page = await answer.text()
            assert (answer.status, answer.content_type) == (status, "text/html")
            request_id = answer.headers["X-Request-ID"]
    assert f"<h1>{title}</h1>" in page
    assert f"<code>{code}</code>" in page
    assert f"<code>{request_id}</code>" in page
    assert SECRET not in page
    assert "<b>deleted" not in page
    assert re.search(r'<p class="lead">\w', page)


async def test_a_name_that_the_server_does_not_have_is_said(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        headers = {"Accept": "text/html,application/xhtml+xml", "Host": "elsewhere.example.org"}
        async with caller.session.get(f"{caller.url}/jobs", headers=headers) as answer:
            page = await answer.text()
            assert answer.status == 421
    assert "<h1>This server has another name</h1>" in page
    assert "allowed_hosts" in page
