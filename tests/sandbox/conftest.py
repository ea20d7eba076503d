"""As whom the agent is started, and the sandbox that the tests of a file share."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from client_agent.sandbox.bubblewrap import command
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.none import NoSandbox
from tests.kit.child import Who, can
from tests.sandbox.real_sandbox import Sandbox, SandboxHost


def started_as(who: Who) -> Who:
    if not can(who):
        pytest.skip("not root: what holds for an agent that root starts is not proved")
    return who


@pytest.fixture(scope="module", params=["root", "user"])
def who(request: pytest.FixtureRequest) -> Who:
    """A test that asks for it runs as both."""
    return started_as(request.param)


@pytest.fixture
def root() -> Who:
    """A test that asks for it runs as root only."""
    return started_as("root")


@pytest.fixture(params=[("root", Bubblewrap), ("user", Bubblewrap), ("root", NoSandbox)])
def agent(request: pytest.FixtureRequest) -> tuple[Who, type[Sandbox]]:
    """As whom it is started, and with which sandbox."""
    who, backend = request.param
    return started_as(who), backend


@pytest.fixture(scope="module")
def host(who: Who) -> Iterator[SandboxHost]:
    host = SandboxHost(who)
    yield host
    assert host.close() == []


def without(option: str, length: int = 1) -> Callable[..., None]:
    """Leaves an option of bwrap and its arguments out, in this process."""

    def change(*_: object) -> None:
        real = command.bwrap_options

        def fewer(*args: Any, **given: Any) -> list[str]:
            options = real(*args, **given)
            at = options.index(option)
            return options[:at] + options[at + length :]

        command.bwrap_options = fewer

    return change


def use_bwrap(sandbox: Any, text: str) -> None:
    """Another program in bwrap's place."""
    home = sandbox.work_folders.images.parents[1]
    program = home / "bwrap"
    program.write_text(text)
    program.chmod(0o755)
    home.chmod(0o755)
    sandbox._tools = replace(sandbox.tools, bwrap=str(program))
