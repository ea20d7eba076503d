"""scripts/setup on machines made of stubs: what it installs, in which order, and what not."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.dev_program import ROOT, ended

REAL_TOOLS = (
    *("basename", "bash", "cat", "cp", "cut", "dirname", "env", "flock", "grep", "install"),
    *("mkdir", "mktemp", "mv", "rm", "sed", "sha256sum", "tail", "touch", "uname"),
)
JOB_TOOLS = ["bwrap", "setpriv", "unshare", "mkfs.ext4"]
DEV_TOOLS = [
    *("git", "make", "unzip", "curl", "openssl", "zsh", "fish", "nginx", "chromium"),
    *("systemd-analyze", "caddy", "mmdebstrap", "promtool", "prometheus"),
]

STUB = "#!/bin/bash\nexit 0\n"
INSTALLER = """#!/bin/bash
echo "$(basename "$0") $*" >>"$MACHINE/log"
if [ -x "$MACHINE/policy-rc.d" ]; then echo "no service is started" >>"$MACHINE/policies"; fi
case " $* " in
    *" update "*) rm -f "$MACHINE/no-lists" ;;
    *" install "*)
        [ ! -e "$MACHINE/no-lists" ] || { echo "E: Unable to locate package"; exit 100; }
        for package; do
            case $package in
                bubblewrap) program=bwrap ;;
                util-linux) program="setpriv unshare" ;;
                e2fsprogs) program=mkfs.ext4 ;;
                *) continue ;;
            esac
            for name in $program; do cp "$MACHINE/bin/stub" "$MACHINE/bin/$name"; done
        done ;;
esac
"""
DOWNLOADER = """#!/bin/bash
case " $* " in
    *" update "*) echo update >>"$MACHINE/log"; rm -f "$MACHINE/no-lists" ;;
    *" download "*)
        echo download >>"$MACHINE/log"
        [ ! -e "$MACHINE/no-lists" ] && touch prometheus.deb ;;
esac
"""
PYTHON = """#!/bin/bash
case "$*" in
    --version) echo "Python 3.11.9" ;;
    *"sys.version_info < (3, 11)"*) [ ! -e "$MACHINE/old-python" ] ;;
    "-m venv --clear --without-pip .venv")
        echo "make venv" >>"$MACHINE/log"
        rm -rf .venv && mkdir -p .venv/bin && cp "$MACHINE/bin/python3" .venv/bin/python ;;
    "-m pip "*)
        all=$*
        echo "${all#-m }" >>"$MACHINE/log"
        if [ -e "$MACHINE/killed-in-pip" ]; then kill -9 $PPID; fi ;;
esac
"""


class Machine:
    """A PATH of its own, a log of the arguments of installers and Python, the project's files;
    Python, an installer and nothing to run jobs with.
    """

    def __init__(self, folder: Path, installer: str = "apt-get") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.project = folder / "project"
        self.bin = folder / "bin"
        self.environment = {"PATH": str(self.bin), "MACHINE": str(folder), "MACHINE_UID": "0"}
        self.bin.mkdir()
        for tool in REAL_TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.bin / tool).symlink_to(found)
        self.add("stub", STUB)
        self.add("python3", PYTHON)
        self.add(installer, INSTALLER)
        self.add("id", "#!/bin/bash\necho $MACHINE_UID\n")
        (self.project / "scripts").mkdir(parents=True)
        shutil.copytree(ROOT / "requirements", self.project / "requirements")
        shutil.copy(ROOT / "pyproject.toml", self.project)
        script = (ROOT / "scripts" / "setup").read_text()
        own_path = "PATH=$PATH:/usr/sbin:/sbin "
        assert script.count(own_path) == 1
        self.script = self.project / "scripts" / "setup"
        policy = "policy=/usr/sbin/policy-rc.d"
        assert script.count(policy) == 1
        self.policy = folder / "policy-rc.d"
        script = script.replace(own_path, "").replace(policy, f"policy={self.policy}")
        self.script.write_text(script)

    def add(self, name: str, text: str = STUB) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def run(self, *arguments: str, uid: int = 0) -> subprocess.CompletedProcess[str]:
        env = self.environment | {"MACHINE_UID": str(uid)}
        return ended(self.bin / "bash", self.script, *arguments, env=env, status=None)

    def done(self, *arguments: str, uid: int = 0) -> list[str]:
        """What a run did that ended well."""
        ended = self.run(*arguments, uid=uid)
        assert ended.returncode == 0, ended.stderr
        return self.log()

    def log(self) -> list[str]:
        """What was done since the last look."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def equipped(tmp_path: Path) -> Machine:
    """Every system program is there."""
    machine = Machine(tmp_path)
    for name in (*JOB_TOOLS, *DEV_TOOLS):
        machine.add(name)
    return machine


PIP = "pip --disable-pip-version-check --no-input --quiet install "
LOCKED = PIP + "--require-hashes -r requirements/run.txt -r requirements/build.txt"
LOCKED_DEV = PIP + "--require-hashes -r requirements/dev.txt"
LINKED = PIP + "--no-deps --no-build-isolation --editable ."


def test_a_bare_machine_gets_system_packages_then_locked_ones_then_ferryman_and_no_more(tmp_path):
    machine = Machine(tmp_path)
    said = machine.run()
    assert said.returncode == 0, said.stderr
    install = "apt-get -y -qq -o DPkg::Lock::Timeout=600 install --no-install-recommends"
    installed = f"{install} bubblewrap util-linux e2fsprogs"
    assert machine.log() == [installed, "make venv", LOCKED, LINKED]
    assert "bubblewrap: the sandbox that jobs run in" in said.stdout
    again = machine.run()
    assert (again.returncode, again.stdout, again.stderr, machine.log()) == (0, "", "", [])


def test_no_service_is_started_and_only_the_machines_own_policy_stays(tmp_path):
    machine = Machine(tmp_path / "none")
    machine.done("--dev")
    assert (machine.folder / "policies").read_text() == "no service is started\n"
    assert not machine.policy.exists()
    machine = Machine(tmp_path / "own")
    machine.policy.write_text(own := "#!/bin/sh\nexit 0\n")
    machine.done("--dev")
    assert machine.policy.read_text() == own


def test_package_lists_are_fetched_if_need_be_and_dnf_or_sudo_is_used_where_that_is_there(tmp_path):
    machine = Machine(tmp_path / "lists")
    (machine.folder / "no-lists").touch()
    assert [line.split()[5] for line in machine.done()[:3]] == ["install", "update", "install"]
    machine = Machine(tmp_path / "dnf", "dnf")
    assert machine.done()[0].endswith("install bubblewrap util-linux e2fsprogs")
    machine = Machine(tmp_path / "sudo")
    machine.add("sudo", '#!/bin/bash\necho sudo >>"$MACHINE/log"\nshift\nexec "$@"\n')
    machine.add("true")
    assert machine.done(uid=1000)[:2] == ["sudo", "sudo"]


def test_what_stops_it_is_said_and_nothing_is_made_but_what_is_optional_may_be_missing(tmp_path):
    machine = Machine(tmp_path)

    def refused(said: str, *arguments: str, uid: int = 0, code: int = 1) -> None:
        ended = machine.run(*arguments, uid=uid)
        assert (ended.returncode, said in ended.stderr) == (code, True), ended.stderr
        assert machine.log() == []
        assert not (machine.project / ".venv").exists()

    refused("usage: scripts/setup [--dev]\n", "--help-me", code=2)
    refused("apt-get install bubblewrap util-linux e2fsprogs", uid=1000)
    machine.add("apt-get", "#!/bin/bash\necho 'E: the disk is full'\nexit 100\n")
    refused("E: the disk is full")
    (machine.folder / "old-python").touch()
    refused("no Python 3.11 or newer (python3 is Python 3.11.9)")
    (machine.folder / "old-python").unlink()
    for name in JOB_TOOLS[:-1]:
        machine.add(name)
    ended = machine.run(uid=1000)
    assert (ended.returncode, "going on without: e2fsprogs" in ended.stdout) == (0, True)
    assert machine.log() == ["make venv", LOCKED, LINKED]


def test_a_set_up_that_was_killed_starts_the_virtual_environment_afresh(equipped):
    (equipped.folder / "killed-in-pip").touch()
    assert equipped.run().returncode != 0
    assert equipped.log() == ["make venv", LOCKED]
    (equipped.folder / "killed-in-pip").unlink()
    assert equipped.done() == ["make venv", LOCKED, LINKED]


def test_prometheus_is_taken_out_of_its_package_with_lists_that_are_there_or_fetched(equipped):
    for name in ("promtool", "prometheus"):
        (equipped.bin / name).unlink()
    equipped.add("apt-get", DOWNLOADER)
    equipped.add("dpkg-deb", "#!/bin/bash\nmkdir -p usr/bin\ntouch usr/bin/{promtool,prometheus}\n")
    (equipped.folder / "no-lists").touch()
    assert equipped.done("--dev")[3:] == ["download", "update", "download"]
    assert equipped.done("--dev") == []
    for name in ("promtool", "prometheus"):
        (equipped.project / ".venv" / "bin" / name).unlink()
    assert equipped.done("--dev") == ["download"]


def test_what_changed_redoes_what_was_made_from_it_and_no_more(equipped):
    equipped.done()
    for changed, redone in (("requirements/run.txt", LOCKED), ("pyproject.toml", LINKED)):
        with (equipped.project / changed).open("a") as file:
            file.write("# changed\n")
        assert equipped.done() == [redone]
    assert equipped.done("--dev") == [LOCKED_DEV]
    assert equipped.done() == []  # what developers need includes what running needs
    moved = equipped.folder / "moved"
    equipped.project.rename(moved)
    equipped.script = moved / "scripts" / "setup"
    assert equipped.done() == ["make venv", LOCKED, LINKED]


def test_two_at_once_install_once(equipped):
    with ThreadPoolExecutor() as threads:
        both = [threads.submit(equipped.run) for _ in range(2)]
    assert [one.result().returncode for one in both] == [0, 0]
    assert equipped.log() == ["make venv", LOCKED, LINKED]
    assert os.access(ROOT / "scripts/setup", os.X_OK)
    assert os.access(ROOT / ".ci/run", os.X_OK)
