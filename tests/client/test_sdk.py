"""What the SDK is made of: errors, documents, types, words."""

import copy
import inspect
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import AwareDatetime, ValidationError

import ferryman
from ferryman import Client, JobDoc, Result, SyncClient, SyncResult, errors
from ferryman.models import events, jobs, operators
from ferryman.models.events import EventDoc
from ferryman.units import say_about, say_count, say_duration, say_size
from tests.client.fake_server import job
from tests.kit.dev_program import ended
from tests.kit.each import each

REFUSED: Any = (409, "a_code", "a sentence")
ARGUMENTS: dict[type[errors.FerrymanError], Any] = {
    errors.FerrymanError: ("a sentence",),
    errors.BadArgument: ("a sentence",),
    errors.BadBundle: ("a sentence", Path("run.sh")),
    errors.FileChanged: (Path("run.sh"),),
    errors.Unreachable: ("http://host", "why"),
    errors.NotUnderstood: ("http://host", "why"),
    errors.BadDownload: ("r.zip", "aa", "bb"),
    errors.WaitedTooLong: (job(), 1.5),
}


def family(kind: type[errors.FerrymanError]) -> list[type[errors.FerrymanError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in family(child))]


@each("kind", family(errors.FerrymanError))
def test_every_error_comes_back_from_pickle_as_it_was(kind):
    error = kind(*ARGUMENTS.get(kind, REFUSED))
    if isinstance(error, errors.Refused):
        error.request_id, error.retry_after, error.part = "r-1", 2.5, "timeout"
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.__dict__ == error.__dict__


def test_every_error_has_a_code_of_its_own_where_the_server_gave_none():
    kinds = [kind for kind in family(errors.FerrymanError) if not issubclass(kind, errors.Refused)]
    assert len({kind.code for kind in kinds}) == len(kinds)


TIMES = {"at", "until", "not_before", "since", "timestamp"}
EVENT = '{"seq":1,"at":"2026-11-20T10:00:00.25%s","attempt":1,"before":null,"status":"Queued"}'


def documents() -> set[type[jobs.Wire]]:
    found = [value for module in (events, jobs, operators) for value in vars(module).values()]
    return {one for one in found if isinstance(one, type) and issubclass(one, jobs.Wire)}


@each("model", documents())
def test_every_time_is_a_datetime(model):
    for name, field in model.model_fields.items():
        kinds = set(get_args(field.annotation) or [field.annotation]) - {NoneType}
        is_time = name.endswith(("_at", "_until")) or name in TIMES
        assert (AwareDatetime in kinds) == is_time, f"{model.__name__}.{name}: {kinds}"


def test_a_time_knows_its_offset_and_goes_back_to_the_wire_as_it_came():
    event = EventDoc.model_validate_json(EVENT % "Z")
    assert event.at == datetime(2026, 11, 20, 10, 0, 0, 250_000, UTC)
    assert event.at.utcoffset() is not None
    assert '"at":"2026-11-20T10:00:00.250000Z"' in event.model_dump_json()
    assert pickle.loads(pickle.dumps(event)) == event
    with pytest.raises(ValidationError, match="timezone"):
        EventDoc.model_validate_json(EVENT % "")


RIGHT = """
import asyncio
from collections.abc import AsyncGenerator, Generator
from datetime import datetime
from pathlib import Path
from typing import assert_type

from ferryman import Client, JobDoc, JobState, Refused, Result, ServiceDoc, SyncClient, SyncResult

async def use(folder: Path) -> None:
    async with Client("https://host", token="t", ca_file=folder / "ca.pem") as client:
        job = await client.submit({"run.sh": folder, "in": b""}, service="s", tags="a", timeout=60)
        assert_type([one.at async for one in client.events(job.id)], list[datetime])
        result = await client.wait(job.id, timeout=1.5)
        assert_type(result, Result)
        assert_type(await result.save("out/"), Path)
        assert_type(await client.services(), list[ServiceDoc])
        assert_type(client.map(folder, [{"a": b""}], service="s"), AsyncGenerator[Result, None])

with SyncClient(token="t", headers={"X": "y"}) as client:
    try:
        assert_type(client.wait(17), SyncResult)
        assert_type(client.jobs(state=JobState.RUNNING), Generator[JobDoc, None, None])
        for each in client.map("bundle", ({"a": b"x"} for _ in range(3)), service="s", retries=2):
            assert_type(each, SyncResult)
    except Refused as refused:
        assert_type(refused.retry_after, float | None)
asyncio.run(use(Path(".")))
"""
WRONG = {
    'client.submit("b", service="s", tmeout=1)': "tmeout",
    'client.submit("b")': "service",
    "client.wait(17).nonsense": "nonsense",
    'SyncClient("http://host", tokn="t")': "tokn",
    'client.status("17")': "str",
    "client.submit({'run.sh': 1}, service='s')": "int",
}


@pytest.mark.slow
def test_a_users_code_passes_mypy_strict_and_mistakes_are_found(tmp_path):
    lines = ["from ferryman import SyncClient", "client = SyncClient()", *WRONG]
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text("\n".join(lines))
    words = ("--strict", "--config-file=", "--no-error-summary", "right.py", "wrong.py")
    done = ended(sys.executable, "-m", "mypy", *words, cwd=tmp_path, status=None)
    assert done.stderr == ""
    said = [line.partition(": ")[::2] for line in done.stdout.splitlines()]
    assert [of for of in said if of[0].startswith("right.py")] == []
    for number, (line, why) in enumerate(WRONG.items(), 3):
        assert any(why in of[1] for of in said if of[0] == f"wrong.py:{number}"), (line, said)


def public(kind: type) -> dict[str, Callable[..., object]]:
    found = inspect.getmembers(kind, inspect.isfunction)
    return {
        name: value
        for name, value in found
        if name[0] != "_" and value.__module__.startswith("ferryman") and name not in dir(JobDoc)
    }


@each("kind", [Client, SyncClient, Result, SyncResult])
def test_everything_public_has_types_says_what_it_does_and_can_be_imported(kind):
    assert public(kind)
    for name, method in public(kind).items():
        for parameter in list(inspect.signature(method).parameters.values())[1:]:
            assert not re.search(r"\bAny\b", str(parameter.annotation)), f"{name}: {parameter}"
        assert method.__doc__ or name == "close", name
        if kind in (Client, Result):
            for one in (one for hint in get_type_hints(method).values() for one in types_in(hint)):
                if one.__module__.startswith("ferryman") and not one.__name__.startswith("_"):
                    assert one.__name__ in ferryman.__all__, name


def types_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type):
        yield hint
    for inner in get_args(hint):
        for one in inner if isinstance(inner, list) else [inner]:
            yield from types_in(one)


@each(("one", "other"), [(Client, SyncClient), (Result, SyncResult)])
def test_both_kinds_have_the_same_surface(one, other):
    ours, theirs = public(one), public(other)
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {"close"}:
        parameters = [list(inspect.signature(its[name]).parameters) for its in (ours, theirs)]
        assert parameters[0] == parameters[1], name
        assert one is Result or ours[name].__doc__ == theirs[name].__doc__, name
    properties = [
        {name for name, value in inspect.getmembers(kind) if isinstance(value, property)}
        for kind in (one, other)
    ]
    assert properties[0] == properties[1]


DURATIONS = "0 0s, 0.0004 1ms, 0.043 43ms, 0.31 0.3s, 4 4s, 48.2 48s, 90 1m 30s, 5400 1h 30m"
ESTIMATES = "-5 1 min, 0 1 min, 100 2 min, 564 9 min, 720 10 min, 3504 1 h, 3420 55 min, 6000 2 h"
SIZES = "0 0 B, 1023 1023 B, 1536 1.5 KiB, 2147483648 2.0 GiB, 3298534883328 3.0 TiB"


@each(
    ("say", "cases"),
    [
        (say_duration, f"{DURATIONS}, 864000 10d"),
        (say_about, f"{ESTIMATES}, 169200 47 h, 570240 7 d"),
        (say_size, SIZES),
        (lambda count: say_count(int(count), "job"), "0 0 jobs, 1 1 job, 2 2 jobs"),
    ],
)
def test_what_people_read(say, cases):
    for number, _, text in (case.partition(" ") for case in cases.split(", ")):
        assert say(float(number) if "." in number else int(number)) == text
