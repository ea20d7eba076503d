"""What the doctor looks at on a server's host."""

from __future__ import annotations

import grp
import os
import socket
import subprocess
from pathlib import Path

import pytest

from client_agent.settings.agent import load
from server.maintenance import doctor
from shared.clock import SECOND, RealClock
from shared.settings.base import SettingsError
from tests.kit.certificates import authority
from tests.kit.clock import SimClock
from tests.kit.each import each


def test_a_folder_is_ones_own_has_room_and_is_there_or_can_be_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    found = {one.about: one for one in doctor.of_folder(tmp_path, 0)}
    levels = {about: one.level for about, one in found.items()}
    assert levels == dict.fromkeys(("folder", "filesystem", "disk"), "ok")
    tmp_path.chmod(0o777)
    found = {one.about: one for one in doctor.of_folder(tmp_path, 1 << 60)}
    assert (found["disk"].level, found["disk"].exit_code) == ("problem", 75)
    assert found["folder"].hint == f"chmod go-w {tmp_path}"
    (missing,) = doctor.of_folder(tmp_path / "data", 0)
    assert missing.level == "warning"
    assert "-o USER" in str(missing.hint)  # as root, it would make a folder of root
    (tmp_path / "file").write_text("")
    (wrong,) = doctor.of_folder(tmp_path / "file" / "data", 0)
    assert (wrong.level, wrong.exit_code) == ("problem", 73)


def test_a_port_that_another_program_has_is_a_problem() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert doctor.of_port("127.0.0.1", port, None).exit_code == 69
        assert doctor.of_port("127.0.0.1", port, "7").level == "ok"
    assert doctor.of_port("127.0.0.1", 0, None).level == "ok"
    assert doctor.of_port("127.0.0.1", 0, "7").level == "warning"


OK = [(0o640, []), (0o640, ["ferryman"]), (0o600, ["ann"])]
OPEN = [(0o640, ["ferryman", "ann"]), (0o640, ["ann"]), (0o604, [])]


@each("how, level", [*((how, "ok") for how in OK), *((how, "warning") for how in OPEN)])
def test_a_secret_may_be_read_by_the_program_and_its_group_alone(tmp_path, monkeypatch, how, level):
    """As the package has it: root's file, with the group of the server's user."""
    file, (mode, members) = tmp_path / "tokens", how
    file.write_text("x")
    file.chmod(mode)
    nobody_elses = grp.struct_group(("ferryman", "x", file.stat().st_gid, members))
    monkeypatch.setattr(grp, "getgrgid", lambda _: nobody_elses)
    found = doctor.of_secrets([file, None, tmp_path / "missing"], tmp_path)
    assert [one.level for one in found] == [level, "problem"]


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: advice about files of root is not proved")
@each("owner", [0, 4242])
def test_what_the_doctor_advises_leaves_a_secret_readable_for_the_program(tmp_path, owner):
    data, file = tmp_path / f"of-{owner}", tmp_path / f"tokens-of-{owner}"
    data.mkdir()
    os.chown(data, 4242, 4343)
    file.write_text("x")
    os.chown(file, owner, 0)
    file.chmod(0o644)
    (found,) = doctor.of_secrets([file], data)
    command = str(found.hint).partition(" (")[0].replace("GROUP", "4343")
    subprocess.run(["sh", "-c", command], check=True)
    about = file.stat()
    owns, in_group = about.st_uid == 4242, about.st_gid == 4343
    assert (owns and about.st_mode & 0o400) or (in_group and about.st_mode & 0o040), command
    assert [one.level for one in doctor.of_secrets([file], data)] == ["ok"]


def test_a_certificate_is_looked_at_for_its_end(tmp_path: Path) -> None:
    certificate = authority(tmp_path, "ca")
    now = RealClock().now()
    assert [one.level for one in doctor.of_certificate(certificate.cert, SimClock(now))] == ["ok"]
    later = SimClock(now + 400 * 365 * 86_400 * SECOND)
    (expired,) = doctor.of_certificate(certificate.cert, later)
    assert (expired.level, expired.exit_code) == ("problem", 77)
    (tmp_path / "none.pem").write_text("nothing")
    (none,) = doctor.of_certificate(tmp_path / "none.pem", SimClock(now))
    assert none.level == "problem"


def test_settings_that_this_user_may_not_read_name_who_may(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[agent]\n")
    file.chmod(0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65_534)
    try:
        with pytest.raises(SettingsError, match=r"Permission denied: read it as root, or as the p"):
            load(file, {})
    finally:
        os.seteuid(before)
