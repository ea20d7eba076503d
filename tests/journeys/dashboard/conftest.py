"""A real server, a real agent and a real browser."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser

from ferryman import SyncClient
from tests.journeys.browser import Visitor, browser, visitor
from tests.kit.dev_program import DevProgram, started

TOKEN = "the-token-of-the-operator"


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Not for longer: while it is open, no other event loop can run in this process. Each start
    costs several seconds of a processor.
    """
    with browser() as one:
        yield one


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProgram]:
    """Without tokens: whoever comes is an operator."""
    with started(tmp_path_factory.mktemp("system")) as running:
        yield running


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProgram]:
    """A system that asks for a token."""
    folder = tmp_path_factory.mktemp("guarded")
    with started(folder, FERRYMAN_SERVER__TOKENS=TOKEN, FERRYMAN_TOKEN=TOKEN) as running:
        yield running


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Visitor]]:
    """Makes people who visit a server; what their consoles complained of fails the test."""
    with ExitStack() as stack:

        def come(url: str, **options: Any) -> Visitor:
            return stack.enter_context(visitor(chromium, url, **options))

        yield come


def submit(system: DevProgram, script: str, **options: Any) -> int:
    """The number of a job of ada's."""
    with SyncClient(system.url, user="ada") as client:
        return client.submit({"run.sh": script.encode()}, service="example", **options).id
