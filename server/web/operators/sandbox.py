"""What an agent says of its sandbox, read with care: an agent can say anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from shared.wire import AgentDoc

_LONGEST: Final = 500
_MOST: Final = 40
SOFT: Final = (
    "A soft limit is watched, and enforced by ending the job: between two looks a job can use more "
    "than it may. A hard limit is enforced by the kernel."
)


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: how it is enforced, and how its last test went.

    Attributes:
        enforcement: hard, soft, none or opened.
        passed: None: it was not tested.
        seen: what happened to the test.
    """

    name: str
    enforcement: str
    passed: bool | None = None
    seen: str = ""


@dataclass(frozen=True, slots=True)
class SandboxView:
    """Attributes:
    broken: why it cannot be used now.
    warning: what the host's operator has opened.
    advice: how soft limits become hard.
    checked_at: of ``ferryman agent check``; None: it was never run, or its time cannot be read.
    passed: whether each limit worked as reported; None: it was never run.
    """

    backend: str
    broken: str
    warning: str
    advice: tuple[str, ...]
    limits: tuple[Limit, ...]
    checked_at: datetime | None
    passed: bool | None

    def named(self, enforcement: str) -> list[str]:
        """The limits that are enforced so."""
        return [one.name for one in self.limits if one.enforcement == enforcement]

    @property
    def failed(self) -> list[str]:
        """The limits that did not work when they were tested."""
        return [one.name for one in self.limits if one.passed is False]


def sandbox_of(agent: AgentDoc) -> SandboxView | None:
    """What the agent said last; None: nothing."""
    said = (agent.health or {}).get("sandbox")
    if not isinstance(said, Mapping):
        return None
    check = _table(said.get("check"))
    rows = check.get("rows")
    tests = {
        _text(row["limit"]): row
        for row in (rows if isinstance(rows, list) else [])[:_MOST]
        if isinstance(row, Mapping) and _text(row.get("limit"))
    }
    enforcement = {_text(name): _text(how) for name, how in _table(said.get("enforcement")).items()}
    for name, row in tests.items():
        enforcement.setdefault(name, _text(row.get("enforcement")))
    version = _text(said.get("version"))
    advice = said.get("advice")
    return SandboxView(
        backend=f"{_text(said.get('backend'))} {version}".strip(),
        broken=_text(said.get("broken")),
        warning=_text(said.get("warning")),
        advice=tuple(map(_text, advice[:_MOST])) if isinstance(advice, list) else (),
        limits=tuple(
            Limit(name, how, _flag(row.get("passed")), _text(row.get("seen")))
            for name, how in sorted(enforcement.items())[:_MOST]
            for row in [tests.get(name, {})]
        ),
        checked_at=_time(check.get("at")),
        passed=_flag(check.get("passed")),
    )


def load_of(agent: AgentDoc) -> float | None:
    """Percent of its host's processors; None: it does not say."""
    said = (agent.health or {}).get("load")
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return min(100.0, max(0.0, float(said)))


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _time(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(_text(value))
        return found.astimezone(UTC) if found.tzinfo else None
    except (ValueError, OverflowError):
        return None
