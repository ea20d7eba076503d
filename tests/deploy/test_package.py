"""The Debian package: built, installed on an empty machine, used, removed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.deploy.empty_machine import EmptyMachine
from tests.docs.conftest import blocks
from tests.support.dev_program import ROOT, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: that the package works is not proved"),
]


@pytest.fixture(scope="module")
def package() -> Path:
    done = subprocess.run(
        [str(ROOT / "deploy/debian/build")],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return ROOT / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def machine(package, tool, tmp_path_factory):
    """With what the package depends on, what a Debian with systemd has, and the package."""
    depends = subprocess.run(
        ["dpkg-deb", "--field", str(package), "Depends"], capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r"(?:^|, )([\w-]+)", re.sub(r" \([^)]*\)", "", depends))
    folder = tmp_path_factory.mktemp("machine") / "root"
    made = EmptyMachine(tool("mmdebstrap"), folder, [*sorted(set(names)), "systemd", "logrotate"])
    folder.chmod(0o755)
    (folder / "ferryman.deb").write_bytes(package.read_bytes())
    said = made.run("dpkg --install /ferryman.deb")
    assert "enable --now ferryman-server" in said
    yield made
    made.remove()


(PAGE,) = (block.text for block in blocks("docs/install.md") if block.kind == "sh first-job")
SERVER = "ferryman server --config /etc/ferryman/server.toml --data-dir /var/lib/ferryman"
AGENT = "ferryman agent --config /etc/ferryman/agent.toml --data-dir /var/lib/ferryman-agent"
FIRST_JOB = f"""
cd /tmp
runuser -u ferryman -- {SERVER} 2> server.log &
{AGENT} 2> agent.log &
failed() {{ cat *.log; exit 1; }}
export FERRYMAN_TOKEN=$(cat /etc/ferryman/server-tokens)
until ferryman doctor > doctor.log 2>&1; do kill -0 %1 %2 || failed; sleep 0.2; done
{PAGE.rstrip()} || failed
python3 -m zipfile -e result.zip result && cat result/stdout.log
kill %1 %2 && wait
"""


def test_it_carries_a_job_at_once_and_leaves_only_data(machine):
    """As its units start it, without systemd, which does not run in a folder."""
    assert machine.run("ferryman --version").startswith("ferryman ")
    machine.run("ferryman config check /etc/ferryman/server.toml")
    machine.run("runuser -u ferryman -- ferryman config check /etc/ferryman/agent.toml")
    closed = machine.run("stat -c '%a %U %G' /etc/ferryman/* /etc/ferryman /var/backups/ferryman")
    assert set(closed.splitlines()) == {
        "640 root ferryman",
        "750 root ferryman",
        "700 ferryman ferryman",
    }
    units = "ferryman-server.service ferryman-agent.service ferryman-backup.timer"
    assert machine.run(f"systemd-analyze verify --man=no {units}") == ""
    machine.run("systemd-tmpfiles --create ferryman.conf && systemd-sysusers ferryman.conf")
    machine.run("install -d -o ferryman -g ferryman -m 700 /var/lib/ferryman")
    machine.run("install -d -m 711 /var/lib/ferryman-agent")
    assert "hello from a job" in machine.run(FIRST_JOB)

    before = machine.run("cat /etc/ferryman/server-tokens")
    machine.run("echo '# mine' >> /etc/ferryman/server.toml && dpkg --install /ferryman.deb")
    assert machine.run("tail -n 1 /etc/ferryman/server.toml; cat /etc/ferryman/server-tokens") == (
        f"# mine\n{before}"
    )

    said = machine.run("dpkg --purge ferryman")
    assert "data are left in /var/lib/ferryman" in said
    left = machine.run(
        "find / -xdev ( -path /proc -o -path /run -o -path /tmp ) -prune"
        " -o -name '*ferryman*' -print".replace("(", "\\(").replace(")", "\\)")
    )
    outside = [path for path in left.split() if not path.startswith("/var/lib/ferryman")]
    assert outside == ["/ferryman.deb"]
    assert "/var/lib/ferryman/ferryman.sqlite" in left.split()
    assert machine.run("getent passwd ferryman").startswith("ferryman:")


def test_what_logs_to_files_is_rotated(machine):
    rules = "/etc/logrotate-of-ferryman"
    (machine.folder / rules[1:]).write_text((ROOT / "deploy/logrotate/ferryman").read_text())
    machine.run(
        f"mkdir -p /var/log/ferryman && chown 0:0 {rules} && chmod 644 {rules}\n"
        "exec 3>> /var/log/ferryman/ferryman-server.log && echo before >&3\n"
        f"logrotate --force {rules} && echo after >&3"
    )
    logs = machine.folder / "var/log/ferryman"
    (rotated,) = logs.glob("ferryman-server.log-*")
    assert rotated.read_text() == "before\n"
    assert (logs / "ferryman-server.log").read_text() == "after\n"


AS_IN_THE_ROOTLESS_CONTAINER = """
mkdir -p /data && chown 5001:5001 /data && chmod 711 /data
mount --bind /data /data && mount -o remount,bind,ro / && mount -t tmpfs tmpfs /tmp
cd /data
setpriv --reuid=5001 --regid=5001 --clear-groups \\
    --inh-caps=-all --bounding-set=-all --no-new-privs \\
    env HOME=/data FERRYMAN_AGENT__DATA_DIR=/data ferryman agent check --json
"""


def test_the_sandbox_holds_in_what_the_rootless_container_leaves_it(machine):
    agent = YAML(typ="safe").load(ROOT / "deploy/docker/compose.rootless.yaml")["services"]["agent"]
    assert (agent["cap_drop"], agent["read_only"], agent["tmpfs"]) == (["ALL"], True, ["/tmp"])
    said = machine.run(f"dpkg --install /ferryman.deb > /dev/null\n{AS_IN_THE_ROOTLESS_CONTAINER}")
    found = json.loads(said[said.index("{") :])["report"]["enforcement"]
    assert found["network"] == "hard"
    assert found["memory"] == "soft"
