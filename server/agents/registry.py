"""Which agents there are, which are up, and who gets the next job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.agents.link import Link
from shared.clock import Clock, Micros


class Registry:
    """``ports.Fleet``."""

    def __init__(self, links: Sequence[Link], clock: Clock) -> None:
        self._links = {link.name: link for link in links}
        self._clock = clock
        start = clock.now()
        self._silent_since: dict[str, Micros] = dict.fromkeys(self._links, start)
        self._start = start
        self._avoided: dict[tuple[str, str], tuple[float, str]] = {}
        """(agent, service) -> monotonic time until when it gets none of them, and why."""

    def choose(self, service: str, held: Mapping[str, int]) -> Link | None:
        able = [
            link
            for link in self._links.values()
            if link.up and _offers(link, service) and self._avoids(link, service) is None
        ]
        return min(able, key=lambda link: (held.get(link.name, 0), link.name), default=None)

    def avoid(self, name: str, service: str, seconds: float, why: str) -> None:
        self._avoided[name, service] = self._clock.monotonic() + seconds, why

    def _avoids(self, link: Link, service: str) -> str | None:
        until, why = self._avoided.get((link.name, service), (0.0, ""))
        return why if self._clock.monotonic() < until else None

    def named(self, name: str) -> Link | None:
        return self._links.get(name)

    def all(self) -> Sequence[Link]:
        return list(self._links.values())

    def silent_since(self, name: str) -> Micros | None:
        if name not in self._links:
            return self._start  # taken out of the settings: never heard of again
        return self._silent_since.get(name)

    def heard(self, link: Link, *, tells: bool) -> None:
        """It answered."""
        link.tells, link.up, link.trouble = tells, True, ""
        self._silent_since.pop(link.name, None)

    def missed(self, link: Link, why: str) -> None:
        """It did not."""
        link.up, link.trouble = False, why
        self._silent_since.setdefault(link.name, self._clock.now())

    def why_none(self, service: str) -> str:
        offering = [link for link in self._links.values() if _offers(link, service)]
        if not offering:
            return f"no agent of this server offers the service {service}"
        reasons = [self._avoids(link, service) if link.up else link.trouble for link in offering]
        return "; ".join(filter(None, reasons)) or "an agent is free"


def _offers(link: Link, service: str) -> bool:
    if link.services:
        return service in link.services
    offered = link.health.services if link.health else None
    return offered is None or service in offered
