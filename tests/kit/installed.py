"""Programs of the machine that tests start. `make setup-dev` installs them."""

import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

OF_WHAT: Final = {
    "caddy": "its file in deploy/ works",
    "chromium": "pages work in a browser",
    "curl": "the lines for it work",
    "fish": "completion works in it",
    "mkfs.ext4": "disk limits of an agent of root hold",
    "mmdebstrap": "the package installs on an empty machine",
    "nginx": "its site in deploy/ works",
    "openssl": "TLS works",
    "prometheus": "the dashboard shows what there is",
    "promtool": "alerts are right",
    "systemd-analyze": "units are right",
    "unzip": "it reads our ZIPs",
    "zsh": "completion works in it",
}
"""Name -> what is not proved without it."""
_ALSO: Final = {"chromium": "google-chrome"}
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def found(name: str) -> str | None:
    """Where it is: beside this Python, or where the system has its programs."""
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return str(beside)
    there = shutil.which(name) or shutil.which(name, path=_PATH)
    return there or (found(_ALSO[name]) if name in _ALSO else None)


def program(name: str) -> str:
    """Where it is; without it the test is skipped, which fails in CI."""
    there = found(name)
    if there is None:
        what = OF_WHAT.get(name, "what it is asked here holds")
        pytest.skip(f"no {name}: that {what} is not proved")
    return there


def missing() -> list[str]:
    """For the start of a run: each program that is not there, and what is not proved without it."""
    return [
        f"no {name}: that {what} is not proved (scripts/setup --dev installs it)"
        for name, what in OF_WHAT.items()
        if found(name) is None
    ]
