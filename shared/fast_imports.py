"""What makes a program ready sooner, while it imports."""

from __future__ import annotations

import gc
import sys


def begin() -> None:
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


def end() -> None:
    """When the program is ready: what there is now is never looked at again, which would take tens
    of milliseconds each time, in the middle of requests.
    """
    gc.freeze()
    gc.enable()
