"""How large everything becomes, as a document."""

from __future__ import annotations

from server.domain.growth import document
from server.http.context import Context
from server.ports import Vitals
from shared.wire import GrowthDoc


def growth_of(context: Context, vitals: Vitals) -> GrowthDoc | None:
    """What is to be expected; None: the history is too short, or the disk does not answer."""
    if vitals.disk is None:
        return None
    room = max(0, vitals.disk.free - vitals.disk.min_free)
    found = context.statistics.growth.read(room)
    return None if found is None else document(found)
