"""Pages: what they show of a job, with everything from outside escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime

import pytest

from server.web.frame import HEADERS, page
from server.web.job_page import job_page
from server.web.refusal_page import refusal_page
from shared.wire import JobDoc, JobState, Links, Progress, QueueInfo, Reason

BAD = "</title><script>alert(1)</script>&\"'"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def doc(**changes: object) -> JobDoc:
    """A running job whose every text is hostile."""
    given = {
        "id": 7,
        "status": JobState.RUNNING,
        "message": BAD,
        "user_id": "ann",
        "service": "example",
        "name": BAD,
        "attempt": 2,
        "retries_left": 0,
        "ended": False,
        "stderr_tail": BAD,
        "warnings": [BAD],
        "output": {BAD: BAD},
        "progress": Progress(current=3, total=4),
        "created_at": AT,
        "links": Links(self="/s", events="/e", logs=f"/l{BAD}", result=None, attempts="", graph=""),
    }
    return JobDoc.model_validate(given | changes)


def test_nothing_from_outside_is_markup():
    for text in (job_page(doc(), BAD), refusal_page(BAD, BAD, BAD, BAD, BAD)):
        assert "<script" not in text
        assert not re.search(r"""(?<!=)"'""", text)


def test_a_job_that_goes_on_is_loaded_again_and_one_that_ended_is_not():
    assert '<meta http-equiv="refresh" content="3">' in job_page(doc())
    assert "http-equiv" not in job_page(doc(ended=True, status=JobState.FAILED))


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"queue": QueueInfo(position=1, reason="others run first")}, "others run first"),
        ({"reason": Reason.TIMEOUT}, "timeout"),
        ({"exit_code": 3}, "<dt>Exit code</dt><dd>3</dd>"),
        ({}, '<progress value="3.0" max="4.0">'),
        ({}, "2026-01-02 03:04:05 UTC"),
        ({}, "<dt>Attempt</dt><dd>2</dd>"),
    ],
)
def test_the_page_says_what_the_document_does(changes, shown):
    assert shown in job_page(doc(**changes))


def test_addresses_on_the_page_carry_the_link():
    text = job_page(doc(links=doc().links.model_copy(update={"result": "/r"})), "a.b")
    assert 'href="/r?link=a.b"' in text


def test_the_policy_allows_the_style_that_is_there_and_nothing_else():
    (style,) = re.findall("<style>(.*?)</style>", page("a", "b"), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in HEADERS["Content-Security-Policy"]
