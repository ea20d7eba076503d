"""Which numbers of the past a request asks for: of the API, and of the page with charts."""

from __future__ import annotations

from typing import Final, get_args

from aiohttp import web

from server.domain.errors import BadField
from server.http.filters import MAX_TEXT
from server.http.parameter_types import choice, word
from shared.wire import StatisticsPeriod

_PERIODS: Final[dict[str, StatisticsPeriod]] = {one: one for one in get_args(StatisticsPeriod)}
STATISTICS: Final = {
    "period": choice("how far back: by the minute, ten minutes or hour", _PERIODS, "hour"),
    "service": word("of this service only", MAX_TEXT),
}


def asked_for(request: web.Request) -> tuple[StatisticsPeriod, str | None]:
    """The period and the service; None: all of them.

    Raises:
        BadField
    """
    text = request.query.get("period") or "hour"
    period = _PERIODS.get(text)
    if period is None:
        known = ", ".join(_PERIODS)
        raise BadField("period", "invalid_period", f"period should be {known}, not {text[:32]!r}")
    return period, request.query.get("service") or None
