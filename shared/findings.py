"""What ``ferryman server doctor`` and ``ferryman agent doctor`` find on their host."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import json
import os
import pwd
import re
import resource
import shutil
import socket
import ssl
import stat
from collections.abc import Iterable, Iterator, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ferryman.findings import Finding, exit_code, lines
from shared.clock import SECOND, Clock
from shared.units.sizes import say_size

__all__ = ["Finding"]
UNAVAILABLE: Final = 69
CANNOT_CREATE: Final = 73
DAMAGED: Final = 74
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "afs", "ceph"})
_MIN_INODES: Final = 10_000
_MIN_FILES: Final = 1_024
_SOON_S: Final = 14 * 86_400


def show(findings: Iterable[Finding], *, as_json: bool) -> int:
    """Print them; the exit code."""
    found = []
    for one in findings:
        found.append(one)
        for line in () if as_json else lines(one):
            print("".join(c if c.isprintable() else "?" for c in line))  # noqa: T201
    if as_json:
        print(json.dumps({"findings": [asdict(one) for one in found]}))  # noqa: T201
    return exit_code(found)


def of_settings(file: Path | None, text: str) -> Finding:
    """Which settings these are: a look at another folder than the program's finds nothing."""
    return Finding("settings", "ok", f"{file or 'no file, defaults and variables'}; {text}")


def of_folder(folder: Path, min_free: int) -> Iterator[Finding]:
    """The data folder: its owner, mode, disk and kind of filesystem."""
    try:
        about = folder.stat()
    except OSError as problem:
        hint = f"the unit makes it; or, for the program's user: install -d -m 0700 -o USER {folder}"
        text = f"{folder}: {problem.strerror}"
        missing = problem.errno == errno.ENOENT
        yield Finding("folder", "warning" if missing else "problem", text, hint, CANNOT_CREATE)
        return
    if about.st_uid not in (os.geteuid(), 0):
        text = f"{folder} belongs to user {about.st_uid}, this is user {os.geteuid()}"
        yield Finding("folder", "warning", text, "run this as the user of the program")
    elif not os.access(folder, os.W_OK | os.X_OK):
        text = f"{folder} cannot be written by user {os.geteuid()}"
        yield Finding("folder", "problem", text, f"chown it: ls -ld {folder}", CANNOT_CREATE)
    elif about.st_mode & 0o022:
        yield Finding("folder", "warning", f"others may write {folder}", f"chmod go-w {folder}")
    else:
        yield Finding("folder", "ok", f"{folder} is the program's own")
    kind, options = _mount(folder)
    if kind in _NETWORK:
        text = f"{folder} is on {kind}: a database on a network share is damaged sooner or later"
        hint = "use a local disk; db_path (server) and database (agent) move the database alone"
        yield Finding("filesystem", "problem", text, hint, DAMAGED)
    elif "ro" in options:
        text = f"{folder} is mounted for reading only"
        yield Finding("filesystem", "problem", text, "dmesg says why", CANNOT_CREATE)
    else:
        yield Finding("filesystem", "ok", kind or "unknown")
    yield from _space(folder, min_free)


def _space(folder: Path, min_free: int) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    if free < min_free:
        text = f"{say_size(free)} are free, {say_size(min_free)} must stay free (min_free)"
        yield Finding("disk", "problem", text, "make room, or keep results for less long", 75)
    elif free < 2 * min_free:
        text = f"{say_size(free)} are free, not much above min_free ({say_size(min_free)})"
        yield Finding("disk", "warning", text, "make room soon")
    else:
        yield Finding("disk", "ok", f"{say_size(free)} are free")
    about = os.statvfs(folder)
    if about.f_files and about.f_favail < _MIN_INODES:
        text = f"{about.f_favail} inodes are free: no more files can be made soon"
        yield Finding("inodes", "warning", text, f"df -i {folder}")


def _mount(folder: Path) -> tuple[str, frozenset[str]]:
    """Kind and options of the filesystem."""
    best, kind, options = "", "", frozenset[str]()
    whole = str(folder.resolve())
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            parts = left.split()
            point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), parts[4])
            inside = whole == point or whole.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind, options = point, right.split()[0], frozenset(parts[5].split(","))
    return kind, options


def holder(folder: Path) -> str | None:
    """Pid of the process that holds the lock of a data folder; None: nobody does."""
    try:
        fd = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(fd)
    return None


def of_port(host: str, port: int, pid: str | None) -> Finding:
    """Whether the address can be listened on, or the program does."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE and pid is not None:
            return Finding("port", "ok", f"{port} is in use; the program runs (pid {pid})")
        hint = f"ss -ltnp 'sport = :{port}' says who has it"
        text = f"{host}:{port}: {problem.strerror}"
        return Finding("port", "problem", text, hint, UNAVAILABLE)
    if pid is not None:
        text = f"the program runs (pid {pid}) and does not listen on {host}:{port}"
        return Finding("port", "warning", text, "it was started with other settings")
    return Finding("port", "ok", f"{port} is free")


def of_open_files() -> Finding:
    """What this user may open; a service has the limit of its unit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _MIN_FILES:
        text = f"only {hard} files may be open at once"
        return Finding("open files", "warning", text, "LimitNOFILE= in the unit, or ulimit -n")
    return Finding("open files", "ok", f"{'any number' if hard < 0 else hard} may be open at once")


def of_secrets(files: Iterable[Path | None], data_dir: Path) -> Iterator[Finding]:
    """Files with tokens and keys: nobody but the program may read them.

    Args:
        data_dir: belongs to the program's user, once it is made.
    """
    for file in files:
        if file is None:
            continue
        try:
            seen = exposure(file, data_dir)
        except OSError as problem:
            hint = "name the right file in the settings"
            yield Finding("secret", "problem", f"{file}: {problem.strerror}", hint, 2)
            continue
        if seen is not None:
            yield Finding("secret", "warning", f"{file}: {seen[0]}", seen[1])
        else:
            yield Finding("secret", "ok", f"{file} is closed to others")


def exposure(file: Path, data_dir: Path) -> tuple[str, str] | None:
    """Who may read a secret and need not, and what to do; None: nobody.

    The program can still read the file when that is done.

    Raises:
        OSError
    """
    about = file.stat()
    user = data_dir.stat().st_uid if data_dir.is_dir() else 0
    if about.st_mode & stat.S_IRWXO:
        closed = f"chown root:GROUP {file} && chmod 640 {file} (GROUP: of the program's user)"
        hint = f"chmod 600 {file}" if user and user == about.st_uid else closed
        return "everybody on this machine can read it", hint
    if about.st_mode & stat.S_IRWXG:
        group, members = _group(about.st_gid, {0, user})
        if members - {group} or len(members) > 1:  # the group of one user has that user's name
            hint = f"the group needs no member but the program's user: getent group {group}"
            return f"its group has members who can read it: {', '.join(sorted(members))}", hint
    return None


def _group(gid: int, known: Set[int]) -> tuple[str, set[str]]:
    """Name and members of a group, without these users."""
    users = {one.pw_name: one for one in pwd.getpwall()}
    try:
        name, listed = grp.getgrgid(gid)[0], grp.getgrgid(gid).gr_mem
    except KeyError:
        name, listed = str(gid), []
    members = {one for one, about in users.items() if about.pw_gid == gid} | set(listed)
    return name, {one for one in members if one not in users or users[one].pw_uid not in known}


def of_certificate(file: Path | None, clock: Clock) -> Iterator[Finding]:
    """When a certificate ends."""
    if file is None:
        return
    try:
        # The one place in the standard library that reads a certificate without a connection.
        decoded: dict[str, Any] = ssl._ssl._test_decode_cert(str(file))  # type: ignore[attr-defined]
        left_s = ssl.cert_time_to_seconds(decoded["notAfter"]) - clock.now() / SECOND
    except (OSError, ssl.SSLError, ValueError, KeyError, AttributeError) as problem:
        yield Finding("certificate", "problem", f"{file}: {problem}", "openssl x509 -text", 2)
        return
    days = round(left_s / 86_400)
    if left_s <= 0:
        text = f"{file} has expired on {decoded['notAfter']}"
        yield Finding("certificate", "problem", text, "renew it, then reload (SIGHUP)", 77)
    elif left_s < _SOON_S:
        text = f"{file} expires in {days} days"
        yield Finding("certificate", "warning", text, "renew it, then reload (SIGHUP)")
    else:
        yield Finding("certificate", "ok", f"{file} is good for {days} days")
