"""Numbers that requests give."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from server.domain.errors import BadField
from server.http import params
from server.http.problems import Refusal


def request(query: str = "", job_id: str = "7") -> web.Request:
    return make_mocked_request("GET", f"/x?{query}", match_info={"id": job_id})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0.0), ("wait=1.5", 1.5), ("wait=30s", 30.0), ("wait=120", 120.0), ("wait=1e9", 120.0)],
)
def test_seconds_are_numbers_up_to_two_minutes(text, seconds) -> None:
    assert params.seconds_param(request(text), "wait") == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "-0.1s", "1" * 33, "1m"])
def test_what_is_no_time_is_refused_by_its_name(text) -> None:
    with pytest.raises(BadField) as caught:
        params.seconds_param(request(f"wait={text}"), "wait")
    assert (caught.value.field, caught.value.code) == ("wait", "invalid_wait")


@pytest.mark.parametrize(("text", "number"), [("", 50), ("n=1", 1), ("n=500", 500), ("n=07", 7)])
def test_whole_numbers_within_bounds(text, number) -> None:
    assert params.int_param(request(text), "n", 50, 1, 500) == number


@pytest.mark.parametrize("text", ["0", "501", "-1", "1.0", "x", "", "9" * 40])
def test_other_numbers_are_refused_by_name_and_bounds(text) -> None:
    with pytest.raises(BadField, match="n should be 1 to 500") as caught:
        params.int_param(request(f"n={text}"), "n", 50, 1, 500)
    assert caught.value.code == "invalid_n"


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", str(2**63), "9" * 5_000])
def test_what_is_no_job_is_not_found(text) -> None:
    with pytest.raises(Refusal) as caught:
        params.job_id(request(job_id=text))
    assert (caught.value.status, caught.value.code) == (404, "job_not_found")
    assert len(str(caught.value)) < 100
    assert params.job_id(request(job_id=str(2**63 - 1))) == 2**63 - 1
