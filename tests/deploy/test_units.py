"""The systemd units: what systemd says of them, and whether the programs work as confined."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.kit.dev_program import ROOT, ended, environment
from tests.kit.each import each
from tests.kit.installed import program
from tests.kit.programs import Program

UNITS = ROOT / "deploy/systemd"
BINARY = "/opt/ferryman/bin/ferryman"


class Unit:
    """One unit file; keys that occur several times add up, as systemd has it."""

    def __init__(self, name: str) -> None:
        self.keys: dict[str, list[str]] = {}
        for line in (UNITS / f"{name}.service").read_text().splitlines():
            key, equals, value = line.partition("=")
            if equals and not line.startswith(("#", "[")):
                self.keys.setdefault(key, []).append(value)

    def command(self, places: dict[str, Path]) -> list[str]:
        """``ExecStart`` with this Python, its folders in other places."""
        words = shlex.split(self.keys["ExecStart"][0])
        assert words[0] == BINARY
        rest = [_moved(word, places) for word in words[1:]]
        return [sys.executable, "-P", "-m", "ferryman", *rest]

    def variables(self, places: dict[str, Path]) -> dict[str, str]:
        pairs = (line.partition("=") for line in self.keys.get("Environment", ()))
        return {name: _moved(value, places) for name, _, value in pairs}

    def confinement(self) -> list[str]:
        """What setpriv can enforce of the unit, as systemd does for the whole process tree."""
        assert self.keys["NoNewPrivileges"] == ["yes"]
        kept = self.keys["CapabilityBoundingSet"][0].lower().split()
        bounds = ",".join(["-all", *(f"+{name.removeprefix('cap_')}" for name in kept)])
        return ["setpriv", "--no-new-privs", f"--bounding-set={bounds}", "--inh-caps=-all"]


def _moved(word: str, places: dict[str, Path]) -> str:
    for place, there in places.items():
        word = word.replace(place, str(there))
    return word


MOST = {"ferryman-server": 11, "ferryman-agent": 55, "ferryman-backup": 4}


@each("name", MOST)
@each("drop_in", ["", "own-journal.conf", "log-to-files.conf"])
def test_systemd_finds_no_fault_in_it_alone_and_with_each_drop_in(name, drop_in, tmp_path):
    copy = tmp_path / f"{name}.service"
    copy.write_text((UNITS / copy.name).read_text().replace(BINARY, "/bin/true"))
    added = tmp_path / f"{copy.name}.d"
    shutil.rmtree(added, ignore_errors=True)
    if drop_in:
        added.mkdir()
        shutil.copy(UNITS / drop_in, added)
    lines = ended(program("systemd-analyze"), "verify", "--man=no", copy).stderr.splitlines()
    assert [line for line in lines if name in line or (drop_in or name) in line] == []


def test_its_exposure_is_what_the_documentation_says_and_the_timer_starts_each_night():
    page, tool = (ROOT / "docs/install.md").read_text(), program("systemd-analyze")
    for name, most in MOST.items():
        words = ("security", "--offline=true", f"--threshold={most}", UNITS / f"{name}.service")
        done = ended(tool, *words)
        figure = re.search(r"exposure level for \S+ ([\d.]+)", done.stdout)
        assert figure is not None
        assert f"`{name}` {figure[1]}" in page
    unit = (UNITS / "ferryman-backup.timer").read_text()
    (when,) = re.findall(r"(?m)^OnCalendar=(.*)$", unit)
    assert ended(tool, "calendar", "--iterations=2", when).stdout.count("02:30:00") >= 2


@pytest.mark.slow  # the quick one: tests/server/test_backup.py
def test_a_backup_is_made_and_the_oldest_go(tmp_path):
    """The unit's own lines, in other folders; systemd writes ``$$`` and ``%%`` for one of them."""
    unit = Unit("ferryman-backup")
    server, backups = Program("server", tmp_path, "backup"), tmp_path / "backups"
    server.start()
    assert server.kill(signal.SIGTERM) == 0
    names = [f"2026-01-0{day}T023000" for day in range(1, 9)]
    for name in (*names, "mine"):
        (backups / name).mkdir(parents=True)
    settings = tmp_path / "server.toml"
    settings.write_text(f"[server]\ndata_dir = '{server.data}'\n")
    places = {"/etc/ferryman/server.toml": settings, "/var/backups/ferryman": backups}
    program = f"{sys.executable} -P -m ferryman"
    for line in (*unit.keys["ExecStart"], *unit.keys["ExecStartPost"]):
        words = shlex.split(line.replace("$$", "$").replace("%%", "%"))
        words = [_moved(word, places).replace(BINARY, program) for word in words]
        variables = {**environment(), **unit.variables({}), "PYTHONPATH": str(ROOT)}
        ended(*words, env=variables)
    kept = sorted(path.name for path in backups.iterdir())
    assert kept[:-2] == names[2:]
    assert kept[-1] == "mine"
    assert (backups / kept[-2] / "backup.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: the unit's bounding set is not proved")
@pytest.mark.slow  # the quick one: that its exposure is as documented
def test_the_agents_sandbox_holds_with_the_units_capabilities(tmp_path):
    unit = Unit("ferryman-agent")
    tmp_path.chmod(0o755)
    state = tmp_path / "state"
    state.mkdir(mode=int(unit.keys["StateDirectoryMode"][0], 8))
    folder = f"[agent]\ndata_dir = '{state}'\n"
    hard = "[agent.sandboxing]\nrequire_hard_limits = true\n"
    (tmp_path / "agent.toml").write_text(folder + hard)
    places = {"/etc/ferryman": tmp_path}
    command = [*unit.confinement(), *unit.command(places), "check", "--json"]
    env, umask = environment() | unit.variables(places), int(unit.keys["UMask"][0], 8)
    done = ended(*command, env=env, cwd=ROOT, umask=umask)
    reply = json.loads(done.stdout)
    assert set(reply["report"]["enforcement"].values()) == {"hard"}
