"""The gate: what the job's bash reads before it opens its script.

The command inside is always bash, and bash reads the file that ``BASH_ENV`` names first. That file
sets the limits, writes one line to stdout, which says that the sandbox is ready, and waits for
``go`` on a descriptor of its own. If the agent dies before that, this is at its end, and nothing of
the user runs. (With bwrap's ``--block-fd`` it would run: 30 of 30 times.) Then it reads the file
again, in which the variables are by now, closes both, and bash goes on with the script.

Bash reads no such file in its POSIX and privileged modes, nor with ``-c`` where its stdin is a
socket: then it reads ``~/.bashrc``. So it starts with variables of the agent only, with an empty
stdin, and the job's files are not there before the gate has written its line.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Final

from client_agent.sandbox.process.chain import set_limits
from shared.files.durable import write_all

GO: Final = b"go\n"


class Gate:
    """The gate of one start.

    Args:
        rlimits: see :func:`client_agent.sandbox.process.chain.set_limits`.
        line: where it waits for ``go``; the chain inherits it under the same number.

    Attributes:
        fd: of the file; the chain inherits it under the same number.
        env: with which bash is started.
    """

    def __init__(self, rlimits: Mapping[str, int], line: int) -> None:
        self._line = line
        self.fd = os.memfd_create("gate", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{self.fd}"
        self.env = {"BASH_ENV": path}
        os.fchmod(self.fd, 0o444)  # of a job with the agent's uid, too
        self._write(
            set_limits(rlimits, 1024)
            + f"echo; read -r -u {line} FERRYMAN_GATE"
            + ' && [ "$FERRYMAN_GATE" = go ] || exit 125\n'
            + f"unset -v BASH_ENV; . {path}\n"
        )

    def give(self, variables: Mapping[str, str]) -> None:
        """Write down the variables of the job, before the gate is opened. A ``BASH_ENV`` of the
        operator's is read as bash would.
        """
        self._write(
            f"for FERRYMAN_GATE in {self._line} {self.fd}; do exec {{FERRYMAN_GATE}}<&-; done\n"
            "unset -v FERRYMAN_GATE\n"
            + "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())
            + ('[ ! -r "$BASH_ENV" ] || . "$BASH_ENV"\n' if "BASH_ENV" in variables else "")
        )

    def _write(self, text: str) -> None:
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        write_all(self.fd, os.fsencode(text))

    def close(self) -> None:
        """Close the agent's descriptor. Repeats are harmless."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
