"""Errors travel between processes, as those of a pool must."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ferryman import Client, errors
from tests.kit.each import each
from tests.unit.ferryman.fake_server import job, problem, serving

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


async def test_a_conflict_keeps_what_the_server_said():
    async def refuse(_: web.Request) -> web.StreamResponse:
        return problem(409, "not_retryable", "it runs", Retry_After="3")

    routes = [("POST", f"/api/v1/jobs/1/{what}", refuse) for what in ("retry", "cancel")]
    async with serving(*routes) as url, Client(url) as client:
        with pytest.raises(errors.Conflict) as conflict:
            await client.retry(1)
        with pytest.raises(errors.AlreadyEnded) as ended:
            await client.cancel(1)
    for caught in (conflict.value, ended.value):
        assert (caught.code, caught.request_id, caught.retry_after) == ("not_retryable", "r-1", 3)


def refuse() -> None:
    raise errors.NotFound(*REFUSED, request_id="r-1")


def test_an_error_of_a_process_pool_reaches_its_caller():
    spawning = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=spawning) as pool,
        pytest.raises(errors.NotFound, match="a sentence") as caught,
    ):
        pool.submit(refuse).result(60)
    assert (caught.value.status, caught.value.request_id) == (409, "r-1")
