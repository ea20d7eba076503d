"""The grants of services, as they are read from the settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from client_agent.sandbox.base import Grant, Grants
from client_agent.settings.agent import AgentSection
from client_agent.settings.grants import SandboxingSection
from tests.kit.each import each


def grants(**sandboxing: object) -> Grants:
    return SandboxingSection.model_validate(sandboxing).grants()


def test_without_settings_nothing_is_granted():
    assert grants().for_service("any") == Grant()
    assert grants().doc() == {}
    assert grants().networked == []


def test_a_services_own_keys_replace_those_of_all_and_variables_add_up():
    granted = grants(
        read_only=["/opt/common"],
        env={"A": "1", "B": "1"},
        allow=["numa"],
        network=True,
        services={
            "gromacs": {
                "read_only": ["/data/refs:/refs", "/opt/gromacs"],
                "env": {"B": "2", "LICENSE": "27000@host"},
                "network": False,
                "scratch": "1GiB",
            }
        },
    )
    other, own = granted.for_service("other"), granted.for_service("gromacs")
    assert other.read_only == ((Path("/opt/common"), "/opt/common"),)
    assert (other.network, set(other.allow), other.scratch) == (True, {"numa"}, None)
    refs = (Path("/data/refs"), "/refs")
    assert own.read_only == ((Path("/opt/gromacs"), "/opt/gromacs"), refs)
    assert own.env == {"A": "1", "B": "2", "LICENSE": "27000@host"}
    assert (own.network, set(own.allow), own.scratch) == (False, {"numa"}, 1 << 30)
    assert granted.networked == ["*"]


def test_the_document_names_variables_but_no_values():
    granted = grants(services={"a": {"env": {"KEY": "hidden"}}})
    (doc,) = granted.doc().values()
    assert doc == {"read_only": [], "env": ["KEY"], "network": False, "allow": []}


def test_parents_are_mounted_before_their_children():
    grant = grants(read_only=["/data/a:/x/y", "/data/b:/x"]).for_service("any")
    assert [place for _, place in grant.read_only] == ["/x", "/x/y"]


@each(
    ("given", "message"),
    [
        ({"read_only": ["opt"]}, "'opt' is not an absolute path below /"),
        ({"read_only": ["/"]}, "not an absolute path below /"),
        ({"read_only": ["/opt/../etc"]}, "not an absolute path below /"),
        ({"read_only": ["/opt:/job/opt"]}, "/job is the sandbox's own"),
        ({"read_only": ["/opt:/proc"]}, "/proc is the sandbox's own"),
        ({"read_only": ["/opt:tools"]}, "give an absolute path"),
        ({"read_only": ["/opt", "/srv:/opt/"]}, "/opt is mounted on twice"),
        ({"env": {"A-B": "1"}}, "'A-B' cannot be the name"),
        ({"env": {"FERRYMAN_JOB_ID": "1"}}, "'FERRYMAN_JOB_ID' cannot be the name"),
        ({"env": {"A": "a\0b"}}, "A has a NUL in it"),
        ({"allow": ["everything"]}, "there is no everything; there are inotify, io_uring, numa"),
        ({"scratch": 0}, "greater than 0"),
    ],
)
@each("service", [False, True])
def test_a_mistake_is_reported(given, message, service):
    with pytest.raises(ValidationError) as refused:
        SandboxingSection.model_validate({"services": {"a": given}} if service else given)
    assert message in str(refused.value)


@pytest.mark.parametrize("path", ["{home}", "{home}/work", "{parent}", "{parent}/link"])
def test_the_agents_own_data_cannot_be_granted(tmp_path, path):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    text = path.format(home=home, parent=tmp_path) + ":/data"
    for given in ({"read_only": [text]}, {"services": {"a": {"read_only": [text]}}}):
        with pytest.raises(ValidationError, match="own data"):
            AgentSection.model_validate({"data_dir": home, "sandboxing": given})


def test_without_a_sandbox_nothing_can_be_mounted_elsewhere(tmp_path):
    given = {"data_dir": tmp_path, "sandbox": "none", "sandboxing": {"read_only": ["/opt:/o"]}}
    with pytest.raises(ValidationError, match="/opt cannot be at /o without a sandbox"):
        AgentSection.model_validate(given)
