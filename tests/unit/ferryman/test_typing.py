"""What type checkers know of the SDK."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import ferryman
from ferryman import Client, Result, SyncClient, SyncResult

RIGHT = """
import asyncio
from collections.abc import AsyncGenerator, Generator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, assert_type

from ferryman import (
    Accepted, AgentDoc, Client, Downloaded, EventDoc, FerrymanError, FileDoc, JobDoc, JobState,
    Refused, Result, ServiceDoc, SyncClient, SyncResult, WaitedTooLong,
)

async def use(folder: Path, file: BinaryIO) -> None:
    async with Client("https://host", token="t", ca_file=folder / "ca.pem") as client:
        job = await client.submit({"run.sh": folder, "in": b""}, service="s", tags="a", timeout=60)
        assert_type(job, Accepted)
        async for event in client.events(job.id):
            assert_type(event, EventDoc)
            assert_type(event.at, datetime)
        result = await client.wait(job.id, timeout=1.5)
        assert_type(result, Result)
        assert_type(result.status, JobState)
        assert_type(result.ended_at, datetime | None)
        assert_type(await result.save("out/"), Path)
        assert_type(await client.fetch(job.id, "a.txt", to=file), Downloaded)
        assert_type([one async for one in result.files()], list[FileDoc])
        assert_type(await client.services(), list[ServiceDoc])
        assert_type(await client.agents(), list[AgentDoc])
        assert_type(client.map(folder, [{"a": b""}], service="s"), AsyncGenerator[Result, None])

def use_blocking(client: SyncClient) -> None:
    try:
        assert_type(client.submit(["run.sh"], service="s"), Accepted)
        result = client.wait(17)
        assert_type(result, SyncResult)
        assert_type(result.save("out"), Path)
        assert_type(client.status(17), JobDoc)
        assert_type(client.jobs(state=JobState.RUNNING), Generator[JobDoc, None, None])
        for each in client.map("bundle", ({"a": b"x"} for _ in range(3)), service="s", retries=2):
            assert_type(each, SyncResult)
    except WaitedTooLong as late:
        assert_type(late.job, JobDoc)
    except Refused as refused:
        assert_type(refused.retry_after, float | None)
    except FerrymanError as problem:
        assert_type(problem.code, str)

with SyncClient(token="t", headers={"X": "y"}) as client:
    use_blocking(client)
asyncio.run(use(Path("."), open("run.sh", "rb")))
"""
WRONG = {
    'client.submit("b", service="s", tmeout=1)': "tmeout",
    'client.submit("b")': "service",
    "client.wait(17).nonsense": "nonsense",
    'SyncClient("http://host", tokn="t")': "tokn",
    'client.status("17")': "str",
    "client.submit({'run.sh': 1}, service='s')": "int",
}


def checked(folder: Path, text: str) -> str:
    """What mypy says of a user's code, without any settings of ours."""
    (folder / "users.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    done = subprocess.run(
        [*command, "users.py"], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
def test_a_users_code_passes_mypy_strict_and_mistakes_are_found(tmp_path):
    assert checked(tmp_path, RIGHT) == ""
    lines = ["from ferryman import SyncClient", "client = SyncClient()", *WRONG]
    found = checked(tmp_path, "\n".join(lines))
    for number, (line, why) in enumerate(WRONG.items(), 3):
        said = [text for text in found.splitlines() if text.startswith(f"users.py:{number}:")]
        assert any(why in text for text in said), f"{line}\n{found}"


def public(kind: type) -> dict[str, Callable[..., object]]:
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: value for name, value in methods if not name.startswith("_")}


@pytest.mark.parametrize("kind", [Client, SyncClient, Result, SyncResult])
def test_everything_public_has_types_and_says_what_it_does(kind):
    own = {n: v for n, v in public(kind).items() if v.__module__.startswith("ferryman")}
    assert own
    for name, method in own.items():
        signature = inspect.signature(method)
        assert signature.return_annotation is not inspect.Signature.empty, name
        for parameter in list(signature.parameters.values())[1:]:
            assert parameter.annotation is not inspect.Parameter.empty, f"{name}: {parameter}"
            assert not re.search(r"\bAny\b", str(parameter.annotation)), f"{name}: {parameter}"
        assert method.__doc__ or name == "close", name


def types_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type):
        yield hint
    for inner in get_args(hint):
        for one in inner if isinstance(inner, list) else [inner]:
            yield from types_in(one)


@pytest.mark.parametrize("kind", [Client, Result])
def test_what_methods_take_and_give_can_be_imported_from_the_package(kind):
    for name, method in public(kind).items():
        hints = get_type_hints(method) if method.__module__.startswith("ferryman") else {}
        for one in (one for hint in hints.values() for one in types_in(hint)):
            if one.__module__.startswith("ferryman") and not one.__name__.startswith("_"):
                assert one.__name__ in ferryman.__all__, name


def test_the_package_says_that_it_is_typed():
    assert (Path(ferryman.__file__).parent / "py.typed").is_file()
    for name in ferryman.__all__:
        assert getattr(ferryman, name) is not None
