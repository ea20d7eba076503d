"""The Debian package: built, installed on an empty machine, used, removed."""

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.docs.conftest import blocks
from tests.kit.dev_program import ROOT, ended
from tests.kit.installed import program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: that the package works is not proved"),
]


# pivot_root, not chroot: in a chroot the kernel gives nobody a user namespace.
_INSIDE = """
mount --make-rprivate / && mount --bind "$0" "$0" && cd "$0" && mkdir -p proc dev sys
mount -t proc proc proc && mount --rbind /dev dev && mount --rbind /sys sys
pivot_root . . && umount -l . && cd /
exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"
"""


class EmptyMachine:
    """A Debian in a folder, with nothing but what a package needs, in namespaces of its own."""

    def __init__(self, folder: Path, packages: Sequence[str]) -> None:
        self.folder = folder
        words = ("--quiet", "--variant=minbase", f"--include={','.join(packages)}")
        suite = platform.freedesktop_os_release()["VERSION_CODENAME"]  # what was built here fits it
        ended(program("mmdebstrap"), *words, suite, folder)

    def run(self, script: str) -> str:
        """What it printed; it must end well."""
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", _INSIDE]
        words = (*command, self.folder, "bash", "-euo", "pipefail", "-c", script)
        return ended(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


@pytest.fixture(scope="module")
def package() -> Path:
    return ROOT / ended(ROOT / "deploy/debian/build", cwd=ROOT).stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def machine(package, tmp_path_factory):
    """With what the package depends on, what a Debian with systemd has, and the package."""
    depends = ended("dpkg-deb", "--field", package, "Depends").stdout
    names = re.findall(r"(?:^|, )([\w-]+)", re.sub(r" \([^)]*\)", "", depends))
    folder = tmp_path_factory.mktemp("machine") / "root"
    made = EmptyMachine(folder, [*sorted(set(names)), "systemd", "logrotate"])
    folder.chmod(0o755)
    (folder / "ferryman.deb").write_bytes(package.read_bytes())
    said = made.run("dpkg --install /ferryman.deb")
    assert "enable --now ferryman-server" in said
    yield made
    shutil.rmtree(folder)


BLOCKS = {block.kind: block.text for block in blocks("docs/install.md")}
PAGE = BLOCKS["sh first-job"]
SERVER = "ferryman server --config /etc/ferryman/server.toml"
AGENT = "ferryman agent --config /etc/ferryman/agent.toml"
ON_THE_HOST = (
    "ferryman backup /var/backups/ferryman/a-day --verify",
    "ferryman admin verify",
    "ferryman check /etc/ferryman/server.toml",
    "rm -r /var/backups/ferryman/a-day",
)
FIRST_JOB = f"""
cd /tmp
runuser -u ferryman -- {SERVER} 2> server.log &
AS_USER {AGENT} 2> agent.log &
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
    for name in ("server", "agent"):
        checked = machine.run(f"runuser -u ferryman -- ferryman check /etc/ferryman/{name}.toml")
        assert f"{name}: fine" in checked
    closed = machine.run("stat -c '%a %U %G' /etc/ferryman/* /etc/ferryman /var/backups/ferryman")
    modes = {"640 root ferryman", "755 root root", "700 ferryman ferryman"}
    assert set(closed.splitlines()) == modes
    units = "ferryman-server.service ferryman-agent.service ferryman-backup.timer"
    assert machine.run(f"systemd-analyze verify --man=no {units}") == ""
    machine.run("systemd-tmpfiles --create ferryman.conf && systemd-sysusers ferryman.conf")
    machine.run("install -d -o ferryman -g ferryman -m 700 /var/lib/ferryman")
    machine.run("install -d -m 711 /var/lib/ferryman-agent")
    assert "hello from a job" in machine.run(FIRST_JOB.replace("AS_USER", ""))
    for line in ON_THE_HOST:
        machine.run(f"cd / && runuser -u ferryman -- {line}")
    assert "PROBLEM" not in machine.run("cd /root && ferryman agent check")
    for folder in ("data", "root/data", "etc/ferryman/data"):
        assert not (machine.folder / folder).exists()
    machine.run("test -e /opt/ferryman/share/deploy/nginx/ferryman.conf")

    before = machine.run("cat /etc/ferryman/server-tokens")
    machine.run("echo '# mine' >> /etc/ferryman/server.toml && dpkg --install /ferryman.deb")
    kept = machine.run("cd /etc/ferryman && tail -n 1 server.toml && cat server-tokens")
    assert kept == f"# mine\n{before}"

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


AS_ITS_UNIT = (
    "setpriv --reuid=ferryman-agent --regid=ferryman-agent --init-groups --no-new-privs"
    " --inh-caps=-all --bounding-set=-all env HOME=/var/lib/ferryman-agent"
)


def test_an_agent_of_an_ordinary_user_is_set_up_by_the_page_and_outlives_an_upgrade(machine):
    """systemd makes its data folder the user's own."""
    machine.run("dpkg --install /ferryman.deb")
    machine.run(BLOCKS["sh ordinary-agent"])
    machine.run(
        "rm -rf /var/lib/ferryman /var/lib/ferryman-agent\n"
        "install -d -o ferryman -g ferryman -m 700 /var/lib/ferryman\n"
        "install -d -o ferryman-agent -g ferryman-agent -m 711 /var/lib/ferryman-agent"
    )
    secret, as_user = "cat /etc/ferryman/server-tokens", FIRST_JOB.replace("AS_USER", AS_ITS_UNIT)
    machine.run(f"{AS_ITS_UNIT} true && ! {AS_ITS_UNIT} {secret}")
    assert "hello from a job" in machine.run(as_user)
    machine.run("dpkg --install /ferryman.deb && systemd-tmpfiles --create ferryman.conf")
    assert "hello from a job" in machine.run(as_user)
    said = machine.run(f"cd / && {AS_ITS_UNIT} ferryman doctor || true")
    problems = [line for line in said.splitlines() if line.startswith("PROBLEM")]
    assert [line for line in problems if not line.startswith("PROBLEM  server:")] == []
    assert machine.run(f"! {AS_ITS_UNIT} {secret} 2> /dev/null") == ""


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
