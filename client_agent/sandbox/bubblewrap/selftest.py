"""The self-test: checks that the sandbox works on this host before any job runs."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from client_agent.sandbox.base import Launch, SandboxBroken, SelfTestReport
from client_agent.sandbox.host_sandbox import SELF_TEST_SLOT, HostSandbox
from client_agent.sandbox.kernel.pidfd import stat_fields, status_field
from shared.wire import Limits

LIMITS: Final = Limits(memory=256 << 20, pids=32, disk=(16 << 20) + 4096)
"""No job has a disk limit of that size, so the test never gets an idle image: it shows whether new
ones can be made."""
REQUIRED_OPTIONS: Final = ("--disable-userns", "--bind-fd", "--json-status-fd")

TEST_SCRIPT: Final = r"""
while read -r key value; do
  case $key in NoNewPrivs:|CapEff:|Seccomp:) echo "${key%:}=$value";; esac
done </proc/self/status
interfaces=
while read -r name rest; do
  case $name in *:) interfaces="$interfaces${name%:} ";; esac
done </proc/net/dev
echo "interfaces=${interfaces% }"
if true 2>/dev/null >>/proc/sys/kernel/core_pattern; then echo core_pattern=open
else echo core_pattern=closed; fi
if [ -e /proc/1/mem ]; then echo init=shown; else echo init=hidden; fi
"""


async def run(sandbox: HostSandbox, bwrap: str) -> SelfTestReport:
    """Check the binary, then run a test program in the sandbox.

    Args:
        bwrap: path of the binary.

    Raises:
        SandboxBroken: it failed. The text says how to repair it.
    """
    version = check_binary(bwrap)
    name = f"self-test-{os.getpid()}"
    workspace = await sandbox.prepare(name, SELF_TEST_SLOT, LIMITS)
    workspace.max_idle_images = 0  # the next test must make a new image, too
    try:
        with tempfile.TemporaryDirectory() as folder:
            launch = Launch(
                ["/bin/bash", "-c", TEST_SCRIPT],
                {},
                timeout_s=30,
                grace_s=1,
                stdout=Path(folder) / "out",
                stderr=Path(folder) / "err",
            )
            try:
                process = await workspace.start(launch)
            except SandboxBroken as problem:
                raise SandboxBroken(f"{problem}\n{advise(str(problem))}") from problem
            host_uid = real_uid(process.pid)
            process.go()
            ended = await process.wait()
            stdout = launch.stdout.read_text(errors="replace")
            stderr = launch.stderr.read_text(errors="replace").strip()
    finally:
        await workspace.destroy()
    if ended.exit_code != 0:
        raise SandboxBroken(f"the sandbox's self-test failed: {ended.message}: {stderr}")
    values = dict(line.split("=", 1) for line in stdout.splitlines() if "=" in line)
    checks = evaluate(values, host_uid, allowed_uid=None if sandbox.separate_uids else os.geteuid())
    failed = [check for check, passed in checks.items() if not passed]
    if failed:
        raise SandboxBroken(
            f"the sandbox does not hold on this host: {', '.join(failed)} (the self-test saw "
            f"{values}, uid {host_uid} on the host)"
        )
    enforcement, advice = dict(workspace.enforcement), sandbox.host.advice
    return SelfTestReport("bubblewrap", version, enforcement, checks, advice)


def evaluate(values: dict[str, str], host_uid: int, *, allowed_uid: int | None) -> dict[str, bool]:
    """What must hold for the test program -> whether it does.

    Args:
        allowed_uid: uid of an unprivileged agent; None: the agent is root, so any uid but 0 is
            allowed.
    """
    return {
        "no_new_privs": values.get("NoNewPrivs") == "1",
        "no_capabilities": int(values.get("CapEff", "1"), 16) == 0,
        "seccomp": values.get("Seccomp") == "2",
        "no_network": values.get("interfaces") == "lo",
        "core_pattern_closed": values.get("core_pattern") == "closed",
        "init_hidden": values.get("init") == "hidden",
        "not_root_on_host": host_uid != 0 and allowed_uid in (None, host_uid),
    }


def real_uid(pid: int) -> int:
    """The real uid of a process as the host sees it."""
    uids = status_field(pid, "Uid:")
    if not uids:
        raise SandboxBroken(f"/proc/{pid}/status has no Uid (stat: {stat_fields(pid)})")
    return int(uids[0])


def check_binary(bwrap: str) -> str:
    """The version of the binary. Raises SandboxBroken if it is setuid, does not run, or is too
    old."""
    path = Path(bwrap)
    if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
        raise SandboxBroken(
            f"{bwrap} is setuid: it would run as the host's root. Remove that "
            f"(chmod u-s {bwrap}) and allow unprivileged user namespaces instead"
        )
    help_text = _output_of(bwrap, "--help")
    missing = [option for option in REQUIRED_OPTIONS if option not in help_text]
    if missing:
        raise SandboxBroken(
            f"{bwrap} does not know {', '.join(missing)}: install a bubblewrap whose --help lists "
            "them (distributions add them to versions of their own)"
        )
    return _output_of(bwrap, "--version").strip().removeprefix("bubblewrap ")


def _output_of(bwrap: str, option: str) -> str:
    try:
        done = subprocess.run(
            [bwrap, option], capture_output=True, text=True, timeout=10, env={}, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise SandboxBroken(f"{bwrap} does not run: {problem}") from problem
    if done.returncode != 0:
        raise SandboxBroken(f"{bwrap} {option} failed: {done.stderr.strip()}")
    return done.stdout


def in_container(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a container of Docker, Podman, Kubernetes, systemd-nspawn or similar."""
    marks = (".dockerenv", "run/.containerenv", "run/systemd/container")
    names = ("container", "KUBERNETES_SERVICE_HOST")
    return any((root / mark).exists() for mark in marks) or any(name in environ for name in names)


def advise(
    message: str,
    proc: Path = Path("/proc/sys"),
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
) -> str:
    """How to repair a bwrap that does not start, according to the settings of the host."""
    limits = {
        "user/max_user_namespaces": (
            "0",
            "allow user namespaces: sysctl -w user.max_user_namespaces=28633",
        ),
        "kernel/unprivileged_userns_clone": (
            "0",
            "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        "kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "AppArmor (Ubuntu 23.10 and newer) forbids bwrap its user namespace: give it a profile "
            "with `userns,` in /etc/apparmor.d/bwrap and load it with apparmor_parser -r",
        ),
    }
    fixes = []
    for name, (bad, fix) in limits.items():
        try:
            value = (proc / name).read_text().strip()
        except OSError:
            continue
        if value == bad:
            fixes.append(fix)
    if not fixes and "not permitted" in message and in_container(root, environ):
        fixes.append(
            "this looks like a container: it needs --security-opt seccomp=unconfined (or a profile "
            "that allows unshare and mount) and --security-opt systempaths=unconfined (Kubernetes: "
            "procMount: Unmasked), because a /proc with masked files cannot be mounted again; or "
            "use a host of its own"
        )
    if shutil.which("bwrap") is None:
        fixes.append("install it: apt install bubblewrap")
    return "To fix it: " + ("; ".join(fixes) or "see the message above, it is bubblewrap's own")
