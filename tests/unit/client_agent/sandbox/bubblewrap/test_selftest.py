"""The self-test: its checks, and the advice if it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.sandbox import host_sandbox
from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.bubblewrap import selftest

GOOD = {
    "NoNewPrivs": "1",
    "CapEff": "0000000000000000",
    "Seccomp": "2",
    "interfaces": "lo",
    "core_pattern": "closed",
    "init": "hidden",
}


def test_a_sandbox_that_isolates_passes_every_check() -> None:
    checks = selftest.evaluate(GOOD, 70_000, allowed_uid=None)
    assert all(checks.values())
    assert len(checks) == 7


@pytest.mark.parametrize(
    ("key", "value", "check"),
    [
        ("NoNewPrivs", "0", "no_new_privs"),
        ("CapEff", "00000000a80425fb", "no_capabilities"),
        ("Seccomp", "0", "seccomp"),
        ("interfaces", "lo eth0", "no_network"),
        ("interfaces", "", "no_network"),
        ("core_pattern", "open", "core_pattern_closed"),
        ("init", "shown", "init_hidden"),
    ],
)
def test_each_failed_check_is_named(key: str, value: str, check: str) -> None:
    checks = selftest.evaluate({**GOOD, key: value}, 70_000, allowed_uid=None)
    assert [name for name, passed in checks.items() if not passed] == [check]


def test_without_output_every_check_but_the_uid_fails() -> None:
    checks = selftest.evaluate({}, 70_000, allowed_uid=None)
    assert [name for name, passed in checks.items() if passed] == ["not_root_on_host"]


@pytest.mark.parametrize(("uid", "allowed"), [(0, None), (0, 0), (70_000, 1000)])
def test_the_uid_on_the_host_is_the_agents_or_any_but_root(uid: int, allowed: int | None) -> None:
    assert not selftest.evaluate(GOOD, uid, allowed_uid=allowed)["not_root_on_host"]


def program(folder: Path, text: str, mode: int = 0o755) -> str:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


HELP = 'echo "--disable-userns --bind-fd --json-status-fd"; [ $1 = --help ] || echo bubblewrap 0.9'


def test_the_version_of_a_new_enough_binary_is_returned(tmp_path: Path) -> None:
    script = 'if [ $1 = --help ]; then echo "--disable-userns --bind-fd --json-status-fd"; '
    script += "else echo bubblewrap 0.9.1; fi"
    assert selftest.check_binary(program(tmp_path, script)) == "0.9.1"


def test_a_setuid_binary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxBroken, match=r"setuid.*chmod u-s"):
        selftest.check_binary(program(tmp_path, HELP, 0o4755))


def test_an_old_binary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxBroken, match=r"does not know --disable-userns: install"):
        selftest.check_binary(program(tmp_path, "echo --bind-fd --json-status-fd"))


def test_a_binary_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(SandboxBroken, match="cannot open shared object"):
        selftest.check_binary(program(tmp_path, "echo cannot open shared object >&2; exit 127"))


def test_a_binary_that_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxBroken, match="does not run"):
        selftest.check_binary(program(tmp_path, "", 0o644))


def test_a_missing_program_names_its_package() -> None:
    with pytest.raises(SandboxBroken, match="apt install bubblewrap"):
        host_sandbox.find_program("no-such-bwrap", "bubblewrap")


@pytest.mark.parametrize(
    ("switch", "value", "words"),
    [
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "/etc/apparmor.d/bwrap"),
    ],
)
def test_settings_of_the_host_that_forbid_bwrap_are_named(
    tmp_path: Path, switch: str, value: str, words: str
) -> None:
    (tmp_path / switch).parent.mkdir(parents=True)
    (tmp_path / switch).write_text(value + "\n")
    assert words in selftest.advise("setting up uid map: Permission denied", tmp_path)


@pytest.mark.parametrize(
    ("file", "variable"),
    [
        *((file, "") for file in (".dockerenv", "run/.containerenv", "run/systemd/container")),
        *(("", name) for name in ("container", "KUBERNETES_SERVICE_HOST")),
    ],
)
def test_the_advice_for_a_container_names_its_options(
    tmp_path: Path, file: str, variable: str
) -> None:
    message = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted"
    assert "container" not in selftest.advise(message, tmp_path, tmp_path, {})
    if file:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    advice = selftest.advise(message, tmp_path, tmp_path, {variable: "1"} if variable else {})
    assert "seccomp=unconfined" in advice
    assert "procMount: Unmasked" in advice


def test_without_a_known_cause_the_advice_refers_to_bubblewraps_message(tmp_path: Path) -> None:
    assert "bubblewrap's own" in selftest.advise("bwrap: something new", tmp_path)
