"""The settings of a service: in people's words, and as a form that an operator fills in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from server.domain.service import Service
from server.http.service_documents import SERVICE_FIELDS
from shared.units.durations import say_duration
from shared.units.sizes import say_size
from shared.wire import Limits

_ZERO: Final = {
    "queued_per_user": "any number",
    "timeout": "no limit",
    "queue_timeout": "for ever",
    "expires_after": "for ever",
    "forget_after": "never",
    "heartbeat_timeout": "off",
    "dead_letter_expires_after": "for ever",
}
"""What 0 means."""
_DURATIONS: Final = {
    "timeout",
    "queue_timeout",
    "heartbeat_timeout",
    "expires_after",
    "forget_after",
    "retry_later_delay",
    "dead_letter_expires_after",
}
_PLAIN: Final = ("env", "secrets", "webhook", "limits")
"""They are no single values."""
_LISTS: Final = frozenset({"retry_delays", "retry_on", "no_retry_on", "webhook.events"})
_LIMITS: Final = {
    "limits.cpus": "processors of an attempt",
    "limits.memory": "memory of an attempt",
    "limits.pids": "processes and threads of an attempt",
    "limits.disk": "what an attempt may write",
    "limits.log": "what is kept of stdout, and of stderr",
    "limits.results": "what a result may have",
    "limits.network": "whether an attempt may use its host's network",
}
_WEBHOOK: Final = {
    "webhook.url": "where its jobs are announced",
    "webhook.events": "what is announced there, such as job.failed",
}
_CHOICES: Final = {
    "backoff": ("constant", "linear", "exponential", "exponential_jitter"),
    "on_shutdown": ("stop", "resubmit", "continue"),
    "dead_letter": ("true", "false"),
    "limits.network": ("true", "false"),
}
MEANINGS: Final[Mapping[str, str]] = {
    **{key: text for key, (text, _) in SERVICE_FIELDS.items() if key not in _PLAIN},
    **_LIMITS,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it is: its value and the default in people's units."""

    key: str
    means: str
    value: str
    default: str
    given: bool


@dataclass(frozen=True, slots=True)
class Field:
    """One setting in the form.

    Attributes:
        text: as it was given; empty: the default.
        error: why it cannot be so.
    """

    key: str
    means: str
    text: str
    default: str
    choices: tuple[str, ...]
    error: str


def values_of(service: Service) -> dict[str, str]:
    """Each setting, as people read it."""
    retry, limits = service.retry, service.limits
    found: dict[str, Any] = {
        key: getattr(service, f"{key}_s") if key in _DURATIONS else getattr(service, key, None)
        for key in MEANINGS
        if "." not in key
    }
    found |= {
        "retries": retry.retries,
        "retry_delays": ", ".join(map(say_duration, retry.delays_s)),
        "backoff": retry.backoff.value if retry.backoff else "none: retry_delays say",
        "retry_delay": say_duration(retry.delay_s),
        "max_retry_delay": say_duration(retry.max_delay_s),
        "retry_on": ", ".join(sorted(retry.retry_on)) or "nothing",
        "no_retry_on": ", ".join(sorted(retry.no_retry_on)) or "nothing",
    }
    found |= {f"limits.{name}": getattr(limits, name) for name in Limits.model_fields}
    return {key: _said(key, found[key]) for key in MEANINGS}


def _said(key: str, value: Any) -> str:
    if key in _ZERO and not value:
        return _ZERO[key]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key in _DURATIONS:
        return say_duration(value)
    if key.startswith("limits.") and key not in ("limits.cpus", "limits.pids"):
        return say_size(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


_DEFAULTS: Final[Mapping[str, str]] = values_of(Service("default"))


def settings_of(service: Service) -> list[Setting]:
    """All settings of a service but variables and webhook."""
    values = values_of(service)
    return [
        Setting(key, means, values[key], _DEFAULTS[key], key in service.given)
        for key, means in MEANINGS.items()
    ]


# -- the form


def given_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """What an operator gave, as the fields of the form have it."""
    return dict(_texts("", settings))


def _texts(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _texts(f"{prefix}{name}.", value)
        elif isinstance(value, list | tuple):
            yield prefix + name, ", ".join(map(str, value))
        else:
            yield prefix + name, str(value).lower() if isinstance(value, bool) else str(value)


def form_of(texts: Mapping[str, str], errors: Mapping[str, str]) -> list[Field]:
    """The fields of the form.

    Args:
        texts: key -> what was given.
        errors: key -> why it cannot be so.
    """
    return [
        Field(
            key,
            means,
            texts.get(key, ""),
            _DEFAULTS.get(key, "none"),
            _CHOICES.get(key, ()),
            errors.get(key, ""),
        )
        for key, means in {**MEANINGS, **_WEBHOOK}.items()
    ]


def sent_settings(form: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a form asks for, as the API takes them; what is empty is left out."""
    found: dict[str, Any] = {}
    for key in (*MEANINGS, *_WEBHOOK):
        text = str(form.get(key, "")).strip()
        if not text:
            continue
        table, _, name = key.rpartition(".")
        inside = found.setdefault(table, {}) if table else found
        inside[name] = _value(key, text)
    return found


def _value(key: str, text: str) -> Any:
    if key in _LISTS:
        return [one.strip() for one in text.split(",") if one.strip()]
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch("[0-9]{1,15}", text) else text


def sent_variables(text: str) -> dict[str, str] | None:
    """Lines ``NAME=value``; None: nothing was written, so they stay as they are.

    Raises:
        ValueError: a line is something else.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines, 1):
        if "=" not in line:
            raise ValueError(f"line {number} has no =: write NAME=value")
    pairs = [line.partition("=") for line in lines]
    return {name.strip(): value for name, _, value in pairs} if lines else None


def errors_of(message: str) -> dict[str, str]:
    """Key -> what is wrong with it, of a refusal that names them, one on a line."""
    found: dict[str, str] = {}
    for line in message.splitlines():
        key, _, why = line.partition(": ")
        # One of a list is named by its number.
        found.setdefault(re.sub(r"\.\d+$", "", key), why or line)
    return found
