"""The form of an upload: its fields in groups, and what each service offers in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from server.domain.service import Service
from server.http.form_texts import FIELDS
from server.http.parameter_types import Param
from shared.units.durations import say_duration
from shared.units.sizes import say_size

MAIN: Final = ("name", "tags")
LIMITS: Final = ("timeout", "cpus", "memory", "pids", "disk")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "When it starts": ("priority", "not_before", "queue_timeout", "after", "inputs_from"),
    "If it fails": (
        "heartbeat_timeout",
        "retries",
        "retry_delays",
        "backoff",
        "retry_delay",
        "max_retry_delay",
        "retry_on",
        "no_retry_on",
    ),
    "Many at once": ("array", "array_file", "max_parallel", "batch_policy"),
    "Its result": ("outputs", "result_files", "expires_after", "callback_url", "meta"),
}
"""Rare ones, which are shown on demand."""
_LABELS: Final[Mapping[str, str]] = {
    "array": "Array of tasks",
    "array_file": "Array from a file",
    "callback_url": "Address to post its end to",
    "cpus": "CPUs",
    "expires_after": "Keep for",
    "heartbeat_timeout": "Longest silence",
    "inputs_from": "Inputs from jobs",
    "after": "After jobs",
    "max_parallel": "Children at once",
    "meta": "Metadata",
    "outputs": "Files of the result",
    "pids": "Processes",
    "queue_timeout": "Longest wait",
    "result_files": "Which files",
    "timeout": "Time limit",
    "user_id": "User",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One input.

    Attributes:
        hint: what it means.
        words: those that it may be; none: any text.
        group: under which it is found; empty: it is always in sight.
    """

    name: str
    label: str
    hint: str
    example: str
    words: tuple[str, ...]
    group: str


def _field(name: str, text: Param, group: str) -> Field:
    label = _LABELS.get(name, name.replace("_", " ").capitalize())
    words = tuple(one for one in text.schema.get("enum", ()) if one)
    return Field(name, label, text.text, text.example, words, group)


def _grouped() -> Iterable[tuple[str, str]]:
    yield from ((name, "") for name in (*MAIN, *LIMITS))
    yield from ((name, group) for group, names in GROUPS.items() for name in names)


INPUTS: Final[Mapping[str, Field]] = {
    name: _field(name, FIELDS[name], group) for name, group in _grouped()
}
"""Name -> the input: all optional fields of an upload."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A service, as somebody sees it who may upload to it.

    Attributes:
        usual: field -> what holds where it is left empty, and mostly the most there is.
        note: what to know before anything is sent there.
    """

    name: str
    usual: Mapping[str, str]
    most_bytes: int
    note: str

    @classmethod
    def of(cls, service: Service, max_bytes: int, *, offered: bool) -> Offer:
        """Args:
        max_bytes: of any upload to this server.
        offered: some agent takes its jobs now.
        """
        note = ""
        if service.paused:
            note = f"It is paused: {service.paused_message}" if service.paused_message else ""
            note = note or "It is paused: its jobs wait."
        elif not offered:
            note = "No agent takes its jobs now: they wait until one does."
        most = min(max_bytes, service.limits.disk)
        return cls(service.name, _usual(service), most, note)


def _usual(service: Service) -> dict[str, str]:
    limits, retry = service.limits, service.retry
    return {
        "timeout": _or(service.timeout_s, "no limit"),
        "cpus": f"{limits.cpus:g}",
        "memory": say_size(limits.memory),
        "pids": str(limits.pids),
        "disk": say_size(limits.disk),
        "queue_timeout": _or(service.queue_timeout_s, "any"),
        "heartbeat_timeout": _or(service.heartbeat_timeout_s, "any"),
        "expires_after": _or(service.expires_after_s, "for ever"),
        "retries": f"{retry.retries}, at most {service.max_retries}",
        "retry_delays": "" if retry.backoff else ", ".join(map(say_duration, retry.delays_s)),
        "backoff": retry.backoff or "",
        "retry_delay": say_duration(retry.delay_s) if retry.backoff else "",
        "max_retry_delay": say_duration(retry.max_delay_s) if retry.backoff else "",
        "retry_on": ", ".join(sorted(retry.retry_on)),
        "no_retry_on": ", ".join(sorted(retry.no_retry_on)),
        "network": "yes" if limits.network else "no",
        "log": say_size(limits.log),
        "results": say_size(limits.results),
    }


def _or(seconds: float, unlimited: str) -> str:
    return say_duration(seconds) if seconds else unlimited
