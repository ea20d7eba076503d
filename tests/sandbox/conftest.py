"""As whom the agent is started, and the sandbox that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.real_sandbox import SandboxHost, Who, can


@pytest.fixture(scope="module", params=["root", "user"])
def who(request: pytest.FixtureRequest) -> Who:
    """A test that asks for it runs as both."""
    if not can(request.param):
        pytest.skip("not root: what holds for an agent that root starts is not proved")
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def host(who: Who) -> Iterator[SandboxHost]:
    host = SandboxHost(who)
    yield host
    assert host.close() == []
