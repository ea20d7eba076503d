"""The fields of uploads and schedules, the parameters of queries, and wrong ones of each."""

import json
import re
from typing import Any

import pytest

from server.api.routes import ROUTES
from tests.kit.each import each
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEDULES = "/api/v1/schedules"
SERVER = """
[services.tight]
timeout = "1h"
queue_timeout = "1h"
heartbeat_timeout = "10m"
expires_after = "1d"
limits = { memory = "1GiB", cpus = 2, pids = 100, disk = "1GiB" }
[services.free]
timeout = "0s"
expires_after = "0s"
[services.again]
retries = 1
backoff = "constant"
"""


async def taken(place: Place, **fields: str) -> dict[str, Any]:
    status, reply = await place.posted(**fields)
    assert status == 201, reply
    return dict(await place.api("GET", f"/jobs/{reply['id']}"))


BACKOFF = "exponential_jitter"


@each(
    "fields, shown",
    [
        ({"tags": "a, b,a,"}, {"tags": ["a", "b"]}),
        ({"priority": "-100"}, {"priority": -100}),
        ({"priority": "+7"}, {"priority": 7}),
        ({"meta": '{"a": [1, "ü"]}'}, {"meta": {"a": [1, "ü"]}}),
        ({"queue_timeout": "0s"}, {"queue_timeout_s": None}),
        ({"outputs": "out/*.csv, a"}, {"outputs": ["out/*.csv", "a"]}),
        ({"result_files": "changed"}, {"result_files": "changed"}),
        ({"not_before": "2100-01-02T01:00:00+01:00"}, {"not_before": "2100-01-02T00:00:00Z"}),
        ({"retry_delays": "90s,5m,1h30m"}, {"retry.retry_delays_s": [90.0, 300.0, 5_400.0]}),
        ({"backoff": BACKOFF}, {"retry.backoff": BACKOFF}),
        ({"backoff": "linear", "retry_delay": "5s"}, {"retry.retry_delay_s": 5.0}),
        ({"service": "again", "retry_delay": "5s"}, {"retry.retry_delay_s": 5.0}),
        ({"backoff": "linear", "max_retry_delay": "1m"}, {"retry.max_retry_delay_s": 60.0}),
        ({"retry_on": "timeout,exit:3"}, {"retry.retry_on": ["exit:3", "timeout"]}),
        ({"array": "0-99:10,200"}, {"children.total": 11}),
        ({"array": "0-3", "max_parallel": "1", "batch_policy": "fail_fast"}, {"ended": False}),
    ],
)
async def test_a_value_is_read(place, fields, shown):
    place.does(None)
    place.warm.scripts["again"] = None
    job = await taken(place, **fields)
    for name, value in shown.items():
        table, _, key = name.rpartition(".")
        assert (job[table] if table else job)[key] == value


DEEP = '{"a":' * 65 + "1" + "}" * 65
RETRIES = "neither an exit code from exit:1 to exit:255"
VALUES = [
    # field, text, what is said
    ("user_id", "", "Missing user_id field"),
    ("user_id", "a b", "should be 1 to 64 characters of A-Z a-z 0-9 . _ @ -"),
    ("service", "", "Missing service field"),
    ("service", "x", "Invalid service 'x'; this server has: again, "),
    ("tags", ",".join(map(str, range(33))), "33 tags; there may be up to 32 words"),
    ("tags", "a b", "'a b' is no tag; there may be up to 32 words"),
    ("name", "a\nb", "'a\\nb' is not up to 200 printable characters"),
    ("priority", "101", "'101' is not a whole number from -100 to 100"),
    ("meta", "{", "'{' is not a JSON object such as"),
    ("meta", '{"a": NaN}', "NaN is not JSON"),
    ("meta", json.dumps({"a": "ü" * (9 << 10)}, ensure_ascii=False), "longer than 16384 bytes"),
    ("meta", '{"a":' * 2_000 + "1" + "}" * 2_000, "nested too deeply"),
    ("meta", DEEP, "nested too deeply"),
    ("meta", '{"a": "\\ud800"}', "half a character"),
    ("meta", '{"a": 1e999}', "not JSON compliant"),
    ("retry_delays", "soon", "'soon' is not a duration"),
    ("retry_delay", "5s", "belongs to a backoff"),
    ("backoff", "slow", "constant, linear, exponential, exponential_jitter"),
    ("retry_on", "exit:0", RETRIES),
    ("no_retry_on", "exit:256", RETRIES),
    ("no_retry_on", "sadness", "nor one of exit_code, timeout"),
    ("not_before", "tomorrow", "such as 2030-01-31T09:00:00Z"),
    ("not_before", "2030-01-31T09:00:00", "does not say its offset from UTC"),
    ("not_before", "9999-12-31T23:59:59-14:00", "not in the years 1970 to 9000"),
    ("array", "0-9:0", "is not a range"),
    ("array", "0-9,5", "indices ascend"),
    ("array", "0-99999999999", "is not a range"),
    ("array_file", "/etc/passwd", "not the name of a file in the bundle"),
    ("max_parallel", "-1", "whole number from 0"),
    ("batch_policy", "wait", "is none of fail_fast, wait_all"),
    ("after", "17;18", "is not the number of a job"),
    ("inputs_from", ",", "1 to 1000 jobs"),
    ("callback_url", "ftp://example.org/x", "is not an http:// or https:// address"),
    ("callback_url", "http://169.254.169.254/latest/meta-data", "is not a public address"),
    ("outputs", "/etc/passwd", ""),
    ("outputs", "../x", ""),
    ("outputs", ",".join(f"a{number}" for number in range(33)), ""),
    ("outputs", " , ", ""),
    ("result_files", "some", ""),
    ("timeout", "1h junk 5m", "is not a duration such as 90s, 1h30m or 10d"),
    ("cpus", "nan", "'nan'"),
    ("memory", "1MiB", "at least 32.0 MiB"),
    ("pids", "8.5", "'8.5'"),
    *((name, "9" * 65_000, "") for name in ("user_id", "service", "name", "memory", "cpus")),
    *((name, "\u0301" * 20_000, "") for name in ("tags", "timeout", "disk", "pids")),
    ("retry_on", "exit:1," * 600, "it is longer than 4096 characters"),
    ("meta", "{}" + " " * (16 << 10), "it is longer than 16384 characters"),
    ("priority", "1" * 1_025, "it is longer than 1024 characters"),
    ("cpu", "2", "did you mean cpus?"),
    ("zzz", "2", "known are user_id, service, name, tags, priority, meta, timeout, "),
    ("x_" * 1_000, "2", "known are"),
]


@each("field, text, says", VALUES)
async def test_a_wrong_value_is_refused_by_name_with_what_is_allowed(place, field, text, says):
    status, reply = await place.posted(**{field: text})
    code = "unknown_service" if field == "service" else f"invalid_{field}"
    code = "unknown_field" if field in {"cpu", "zzz", "x_" * 1_000} else code
    code = "callback_refused" if text.startswith("http://169") else code
    assert (status, reply["code"], reply["part"]) == (400, code, field[:64])
    assert says in reply["message"]
    assert len(reply["message"]) < 700
    assert (await place.api("GET", "/jobs", user=place.user))["items"] == []


async def test_optional_fields_that_are_empty_count_as_left_out(place):
    """As Swagger's page sends them, with no file chosen."""
    names = ["name", "tags", "timeout", "memory", "disk", "cpus", "pids", "meta", "bundle", "file"]
    job = await taken(place, **dict.fromkeys(names, ""))
    plain = await taken(place)
    assert job["warnings"] == []
    for name in ("name", "tags", "timeout_s", "limits", "meta"):
        assert job[name] == plain[name]


@each(
    "wanted, holds, warnings",
    [
        (
            {"timeout": "90s", "memory": "64MiB", "pids": "20", "queue_timeout": "30m"},
            {"timeout_s": 90, "memory": 64 << 20, "pids": 20, "queue_timeout_s": 1_800},
            [],
        ),
        (
            {"timeout": "10d", "memory": "1TB", "cpus": "64", "pids": "100"},
            {"timeout_s": 3_600, "memory": 1 << 30, "cpus": 2.0, "pids": 100, "disk": 1 << 30},
            ["timeout: 10d was", "memory: 1TB", "cpus: 64 was asked for, service tight allows 2"],
        ),
        (  # No limit at all is more than any.
            {"queue_timeout": "0s", "heartbeat_timeout": "1h", "expires_after": "0s"},
            {"queue_timeout_s": 3_600, "heartbeat_timeout_s": 600, "expires_after_s": 86_400},
            ["queue_timeout: 0s was", "heartbeat_timeout: 1h was", "expires_after: 0s was"],
        ),
        ({"service": "free", "timeout": "0s"}, {"timeout_s": None, "expires_after_s": None}, []),
        (
            {"retries": "2", "retry_on": "exit:7"},
            {"retries_left": 2},
            ["retry_on: exit:7 leaves out heartbeat_timeout, other exit codes, timeout, which"],
        ),
        ({"retry_on": "exit:7"}, {"retries_left": 0}, []),
    ],
)
async def test_limits_are_lowered_never_raised_and_what_was_cut_or_left_out_is_said(
    place, wanted, holds, warnings
):
    status, reply = await place.posted(**{"service": "tight"} | wanted)
    assert status == 201, reply
    job = await place.job(reply["id"])
    assert job["attempts"][0]["timeout_s"] == job["timeout_s"]
    shown = job["limits"] | job
    assert {name: shown[name] for name in holds} == holds
    assert reply.get("warnings", []) == job["warnings"]
    assert all(map(str.startswith, job["warnings"], warnings)), job["warnings"]
    assert len(job["warnings"]) == len(warnings)


async def scheduled(place: Place, **fields: str) -> tuple[int, Any]:
    files = {"run.sh": b"echo hello\n", "params.txt": b"a\n"}
    given = {"name": "nightly", "cron": "30 2 * * *"} | fields
    return await place.posted(files, None, SCHEDULES, **given)


@each(
    "field, value, code, words",
    [
        ("cron", "61 * * * *", "invalid_cron", "'61 * * * *' is no cron line (bad minute)"),
        ("name", "", "missing_name", "a schedule has a name"),
        ("time_zone", "Middle/Earth", "invalid_time_zone", "'Middle/Earth'"),
        ("time_zone", "Europe", "invalid_time_zone", "'Europe'"),
        ("time_zone", "../../etc/passwd", "invalid_time_zone", "Europe/Berlin"),
        ("array_file", "params.txt", "invalid_array_file", "again and again"),
        ("after", "1", "invalid_after", "again and again"),
        ("not_before", "in 2h", "invalid_not_before", "again and again"),
        ("retries", "many", "invalid_retries", "'many'"),
        ("color", "red", "unknown_field", "color"),
        ("user_id", "a b", "invalid_user_id", "user_id"),
    ],
)
async def test_a_wrong_field_is_named_with_its_value(place, field, value, code, words):
    status, problem = await scheduled(place, **{field: value})
    assert (status, problem["code"], problem["part"]) == (400, code, field), problem
    assert words in problem["detail"]
    assert (await place.api("GET", "/schedules", user=place.user))["items"] == []


async def test_a_schedule_is_listed_as_added_and_a_user_has_each_name_once(place, monkeypatch):
    monkeypatch.setattr("server.store.schedules.MOST_OF_USER", 2)
    _, first = await scheduled(place, time_zone="Europe/Berlin", tags="a", idempotency_key="k")
    assert (first["cron"], first["time_zone"]) == ("30 2 * * *", "Europe/Berlin")
    fields = {"user_id": place.user, "service": place.service, "name": "nightly", "tags": "a"}
    assert (first["fields"], first["next_at"][-7:]) == (fields, ":30:00Z")
    assert (await place.api("GET", "/jobs", schedule=str(first["id"])))["items"] == []
    status, problem = await scheduled(place)
    assert (status, problem["code"]) == (409, "schedule_exists")
    assert (await scheduled(place, user_id=f"{place.user}-other"))[0] == 201
    _, second = await scheduled(place, name="other")
    status, problem = await scheduled(place, name="third")
    assert (status, problem["code"]) == (409, "too_many_schedules")
    query = {"limit": "1", "user": place.user}
    page = await place.api("GET", "/schedules", **query)
    rest = await place.api("GET", "/schedules", **query, cursor=page["next"])
    assert (page["items"] + rest["items"], rest["next"]) == ([second, first], None)


async def test_a_misspelt_parameter_is_refused_on_every_route_with_the_nearest_name(place):
    wrong = []
    for route in ROUTES:
        known = next(iter(route.parameters), None)
        given = "nonsense" if known is None else f"{known}x"
        path = re.sub(r"{\w+}", "1", route.path.replace("{stream}", "stdout"))
        status, said = await place.ask(route.method, f"{path}?{given}=1")
        if route.fields_in_query:  # it needs a form first
            good = status == 400
        else:
            says = "there are none" if known is None else f"did you mean {known}?"
            why = said.get("detail") or said["message"]
            named = (status, said["code"], said["part"]) == (400, "unknown_parameter", given)
            good = named and why.endswith(says)
        if not good:
            wrong.append((route.method, route.path, status, said))
    assert wrong == []


NO_LIMITS = ("0", "501", "1.0", "", "9" * 40)
NO_WAITS = ("", "soon", "-1", "nan", "inf", "-0.1s", "1_0", "1m", "1" * 33)


@each(
    "path, status, code, words",
    [
        ("/jobs/99999", 404, "job_not_found", ""),
        ("/nothing", 404, "not_found", ""),
        ("/jobs?color=red", 400, "unknown_parameter", ""),
        ("/jobs?state=Failed&state=Running", 400, "repeated_parameter", ""),
        ("/jobs?state=Sleeping", 400, "invalid_state", "'Sleeping'"),
        ("/jobs?reason=bored", 400, "invalid_reason", "exit_code"),
        ("/jobs?since=soon", 400, "invalid_since", "'soon' is not a time such as"),
        ("/jobs?since=2020-01-01T00:00:00", 400, "invalid_since", "offset from UTC"),
        ("/jobs?parent=x", 400, "invalid_parent", "'x' is not a number"),
        ("/jobs?dead_letter=false", 400, "invalid_dead_letter", "leave it out"),
        ("/jobs?top_level=false", 400, "invalid_top_level", "leave it out"),
        (f"/jobs?name={'n' * 201}", 400, "invalid_name", "200"),
        ("/agents?retired=yes", 400, "invalid_retired", ""),
        ("/tokens?ended=2", 400, "invalid_ended", ""),
        *((f"/jobs?limit={text}", 400, "invalid_limit", "") for text in NO_LIMITS),
        *((f"/events?wait={text}", 400, "invalid_wait", "") for text in NO_WAITS),
    ],
)
async def test_errors_are_problems_that_name_what_is_wrong(place, path, status, code, words):
    found, kind, body = await place.get(f"/api/v1{path}")
    problem = json.loads(body)
    assert (found, kind, problem["code"]) == (status, "application/problem+json", code)
    assert problem["request_id"]
    assert words in problem["detail"] != ""


async def test_what_is_no_job_is_not_found_and_a_field_of_a_query_is_given_once(place):
    for text in ("x", "-1", "1.5", str(2**63), str(2**63 - 1), "9" * 5_000):
        for method, path in (
            *(("GET", f"/{way}/{text}") for way in ("api/v1/jobs", "download", "download_partial")),
            ("POST", f"/terminate/{text}"),
        ):
            status, said = await place.ask(method, path)
            assert (status, said["code"]) == (404, "job_not_found"), path
            why = said.get("detail") or said["message"]
            assert len(why) < 100
            assert text != "x" or "'x' is not the number of a job" in why
            assert path.startswith("/api") or (said["id"], said["status"]) == (0, "Unknown")
    status, said = await place.ask("POST", "/upload?user_id=a&user_id=b")
    assert (status, said["code"]) == (400, "repeated_parameter")
