"""What an operator opens for a service: read right, or refused by name."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

from client_agent.payloads.errors import Refused
from client_agent.sandbox.base import Grant
from client_agent.sandbox.grants import FRESH_S, LOOK_S, Grants
from client_agent.settings.agent import AgentSection
from client_agent.settings.grants import Sandboxing
from shared.wire import Limits
from tests.support.sandboxed import until
from tests.support.simclock import SimClock

ENVIRON = {"LICENSE": "27000@host", "SECRET": "s"}
NETWORK = Limits(network=True)


def grants(**sandboxing: object) -> Grants:
    return Sandboxing.model_validate(sandboxing).grants(ENVIRON)


def test_with_nothing_said_nothing_is_open():
    assert grants().of("any") == Grant()
    assert grants().doc() == {}
    assert grants().networked == []


def test_a_services_own_keys_replace_those_of_all_and_variables_add_up():
    found = grants(
        read_only=["/opt/common"],
        env={"A": "1", "B": "1"},
        allow=["numa"],
        network=True,
        services={
            "gromacs": {
                "read_only": ["/data/refs:/refs", "/opt/gromacs"],
                "env": {"B": "2"},
                "pass_env": ["LICENSE", "NOT_THERE"],
                "network": False,
                "scratch": "1GiB",
            }
        },
    )
    other, own = found.of("other"), found.of("gromacs")
    assert other.read_only == ((Path("/opt/common"), "/opt/common"),)
    assert (other.network, set(other.allow), other.scratch) == (True, {"numa"}, None)
    refs = (Path("/data/refs"), "/refs")
    assert own.read_only == ((Path("/opt/gromacs"), "/opt/gromacs"), refs)
    assert own.env == {"A": "1", "B": "2", "LICENSE": "27000@host"}
    assert (own.network, set(own.allow), own.scratch) == (False, {"numa"}, 1 << 30)
    assert found.networked == ["*"]


def test_what_is_told_names_variables_but_no_values():
    found = grants(services={"a": {"env": {"KEY": "hidden"}, "pass_env": ["SECRET"]}})
    (doc,) = found.doc().values()
    assert doc == {"read_only": [], "env": ["KEY", "SECRET"], "network": False, "allow": []}


def test_parents_are_mounted_before_what_lies_below_them():
    found = grants(read_only=["/data/a:/x/y", "/data/b:/x"]).of("any")
    assert [place for _, place in found.read_only] == ["/x", "/x/y"]


def test_the_network_needs_the_agents_word_too():
    with pytest.raises(Refused, match="does not give to it") as refused:
        grants().check("any", NETWORK)
    assert (refused.value.status, refused.value.code) == (403, "not_offered")
    grants(network=True).check("any", NETWORK)
    grants(services={"a": {"network": True}}).check("a", NETWORK)
    with pytest.raises(Refused):
        grants(services={"a": {"network": True}}).check("b", NETWORK)


async def test_what_is_not_there_now_may_be_there_later(tmp_path):
    found = grants(services={"a": {"read_only": [f"{tmp_path}/tree:/tree"]}})
    clock = SimClock()
    await found.look(clock)
    with pytest.raises(Refused, match="/tree, which the jobs of 'a' need") as refused:
        found.check("a", Limits())
    assert refused.value.status == 503
    found.check("b", Limits())
    (tmp_path / "tree").mkdir()
    await found.look(clock)
    found.check("a", Limits())
    await clock.advance(FRESH_S)
    (tmp_path / "tree").rmdir()
    await found.look(clock)
    with pytest.raises(Refused):
        found.check("a", Limits())


async def test_a_file_server_that_does_not_answer_holds_up_nothing():
    asked, answer = [], threading.Event()

    def exists(path: Path) -> bool:
        asked.append(str(path))
        return str(path) != "/far" or answer.wait(60)

    grant = {name: Grant(read_only=((Path(f"/{name}"), "/x"),)) for name in ("far", "near")}
    near = Grant(read_only=((Path("/a-near"), "/x"),))
    found = Grants(Grant(), {**grant, "a-near": near}, exists)
    clock = SimClock()
    looking = asyncio.create_task(found.look(clock))
    await until(lambda: "/far" in asked)
    await clock.until_asleep(LOOK_S)
    await clock.advance(LOOK_S)
    await looking
    for near_by in ("a-near", "near"):  # whichever was asked for first
        found.check(near_by, Limits())
    with pytest.raises(Refused, match="/far, which the jobs"):
        found.check("far", Limits())
    await clock.advance(FRESH_S)
    await asyncio.wait_for(found.look(clock), 5)  # nobody waits for it again
    assert asked.count("/far") == 1  # the first look is still under way, and no thread is added
    answer.set()
    await until(lambda: found._trees[Path("/far")].there)
    found.check("far", Limits())
    found.check("near", Limits())
    await clock.advance(FRESH_S)
    await found.look(clock)
    assert asked.count("/far") == 2


async def test_many_orders_at_once_are_one_look():
    asked = []

    def exists(path: Path) -> bool:
        asked.append(path)
        return True

    found = Grants(Grant(read_only=((Path("/x"), "/x"),)), {}, exists)
    clock = SimClock()
    for _ in range(20):
        await found.look(clock)
    assert len(asked) == 1
    await clock.advance(FRESH_S)
    await found.look(clock)
    assert len(asked) == 2


async def test_a_folder_that_cannot_be_asked_for_is_not_there():
    def exists(path: Path) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle")

    found = Grants(Grant(read_only=((Path("/stale"), "/x"),)), {}, exists)
    await found.look(SimClock())
    with pytest.raises(Refused, match="/stale, which the jobs"):
        found.check("a", Limits())


@pytest.mark.parametrize(
    ("given", "said"),
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
        ({"pass_env": ["A=1"]}, "'A=1' cannot be the name"),
        ({"allow": ["everything"]}, "there is no everything; there are inotify, io_uring, numa"),
        ({"scratch": 0}, "greater than 0"),
    ],
)
@pytest.mark.parametrize("service", [False, True])
def test_a_mistake_is_told(given, said, service):
    with pytest.raises(ValidationError) as refused:
        Sandboxing.model_validate({"services": {"a": given}} if service else given)
    assert said in str(refused.value)


@pytest.mark.parametrize("path", ["{home}", "{home}/work", "{parent}", "{parent}/link"])
def test_the_agents_own_data_cannot_be_opened(tmp_path, path):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    text = path.format(home=home, parent=tmp_path) + ":/data"
    for given in ({"read_only": [text]}, {"services": {"a": {"read_only": [text]}}}):
        with pytest.raises(ValidationError, match="own data"):
            AgentSection.model_validate({"data_dir": home, "sandboxing": given})


def test_without_a_sandbox_nothing_can_be_elsewhere(tmp_path):
    given = {"data_dir": tmp_path, "sandbox": "none", "sandboxing": {"read_only": ["/opt:/o"]}}
    with pytest.raises(ValidationError, match="/opt cannot be at /o without a sandbox"):
        AgentSection.model_validate(given)


def test_bundles_of_other_servers_get_the_network_only_where_it_is_given(tmp_path):
    limits = {"network": True}
    with pytest.raises(ValueError, match=r"sandboxing.network must say so"):
        AgentSection.model_validate({"default_limits": limits})
    AgentSection.model_validate({"default_limits": limits, "sandboxing": {"network": True}})
