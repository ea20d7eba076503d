"""How a program sets the interpreter while it starts, and when it is ready."""

from __future__ import annotations

import gc
import sys
from typing import Final

from ferryman.host_certificates import import_aiohttp

_TURN_S: Final = 0.0005
"""How long a thread may keep the interpreter while another waits for it."""


def starting() -> None:
    """Before all other imports of a program.

    What is imported stays, so that looking for garbage among it is in vain. And structlog imports
    rich where it is installed, for tracebacks that ours do not look like.
    """
    gc.disable()
    before = sys.modules.get("rich")
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]
    if before is not None:
        sys.modules["rich"] = before
    import_aiohttp()


def ready() -> None:
    """When the program is ready: what there is now is never looked at again for garbage, which
    would take tens of milliseconds each time, in the middle of requests.

    And the event loop waits for the interpreter a tenth as long as by default: beside a busy thread
    (a template that is compiled, an archive that is searched) each step of a job took 5 ms more.
    """
    gc.freeze()
    gc.enable()
    sys.setswitchinterval(_TURN_S)
