"""Why a submit is refused before it is accepted."""

from __future__ import annotations

import pytest

from client_agent.intake.admission import Admission, Identity
from client_agent.payloads.errors import Refused
from client_agent.sandbox.watch import SandboxWatch
from client_agent.settings.grants import SandboxingSection
from client_agent.storage.folders import Folders
from shared.wire import Limits
from tests.kit.agent import numbered
from tests.kit.clock import SimClock
from tests.kit.fake_sandbox import FakeSandbox

NETWORK = Limits(network=True)


@pytest.fixture
def admission(tmp_path):
    def make(**sandboxing: object) -> Admission:
        clock = SimClock()
        grants = SandboxingSection.model_validate(sandboxing).grants()
        folders = Folders(tmp_path / "home", numbered())
        watch = SandboxWatch(FakeSandbox(clock, tmp_path), clock)
        identity = Identity("id", "node-1", "1.0", 1, {}, None, 0)
        return Admission(identity, folders, watch, grants, clock)

    return make


def test_the_network_needs_a_grant_of_the_agent(admission):
    with pytest.raises(Refused, match="does not give to it") as refused:
        admission().check_service("any", NETWORK)
    assert (refused.value.status, refused.value.code) == (403, "not_offered")
    admission(network=True).check_service("any", NETWORK)
    admission(services={"a": {"network": True}}).check_service("a", NETWORK)
    with pytest.raises(Refused):
        admission(services={"a": {"network": True}}).check_service("b", NETWORK)


async def test_a_service_whose_folder_is_missing_is_refused_alone(admission, tmp_path):
    checks = admission(services={"a": {"read_only": [f"{tmp_path}/tree:/tree"]}})
    await checks.check_ready(0)
    with pytest.raises(Refused, match="/tree, which the jobs of 'a' need") as refused:
        checks.check_service("a", Limits())
    assert refused.value.status == 503
    checks.check_service("b", Limits())
    (tmp_path / "tree").mkdir()
    await checks.check_ready(0)
    checks.check_service("a", Limits())
