"""When a cron line is due: five fields, read as Debian's cron reads them, in a time zone.

Where clocks are set forward, a time that does not exist that day is due as soon as the clock goes
on; where they are set back, a time that comes twice is due the first time only. Lines whose minute
or hour begins with ``*`` go by the time that passes: they skip and repeat nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Final

from cronsim import CronSim, CronSimError

from shared.clock import SECOND, Micros

_FIELDS: Final = 5
_LONGEST: Final = 200
_LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC).timestamp() * SECOND
_SUCH_AS: Final = (
    "minute, hour, day of the month, month and day of the week, such as 30 2 * * 1-5 "
    "for half past two from Monday to Friday"
)


def cron_line(text: str) -> str:
    """A cron line, with single spaces.

    Raises:
        ValueError: it is none, or no time fits it.
    """
    words = text.split()
    line = " ".join(words)
    if len(words) != _FIELDS or len(line) > _LONGEST:
        raise ValueError(f"{text[:64]!r} has not the five fields {_SUCH_AS}")
    try:
        next_time(line, UTC, 0)
    except CronSimError as problem:
        what = str(problem).lower()
        raise ValueError(
            f"{line[:64]!r} is no cron line ({what}); its fields are {_SUCH_AS}"
        ) from None
    return line


def next_time(line: str, zone: tzinfo, after: Micros) -> Micros:
    """The first time behind ``after`` that fits the line.

    Raises:
        ValueError: there is none in the next fifty years.
    """
    times = CronSim(line, datetime.fromtimestamp(min(after, _LATEST) / SECOND, zone))
    for time in times:
        at = round(time.timestamp() * SECOND)
        if at > after:  # in an hour that comes twice, it may have been the first time
            return at
    raise ValueError(f"no time fits {line!r}")
