"""The documents of the API as Python sees them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from types import NoneType
from typing import get_args

import pytest
from pydantic import AwareDatetime, ValidationError

from ferryman.models import events, jobs, operators
from ferryman.models.events import EventDoc
from tests.kit.each import each

MODULES = (events, jobs, operators)
DOCUMENTS = sorted(
    {
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, jobs.Wire)
    },
    key=lambda model: model.__name__,
)
EVENT = '{"seq":1,"at":"2026-11-20T10:00:00.25%s","attempt":1,"before":null,"status":"Queued"}'


@each("model", DOCUMENTS)
def test_every_time_is_a_datetime(model):
    for name, field in model.model_fields.items():
        kinds = set(get_args(field.annotation) or [field.annotation]) - {NoneType}
        is_time = name.endswith(("_at", "_until")) or name in {
            "at",
            "until",
            "not_before",
            "since",
            "timestamp",
        }
        assert (AwareDatetime in kinds) == is_time, f"{model.__name__}.{name}: {kinds}"


def test_a_time_knows_its_offset_and_goes_back_to_the_wire_as_it_came():
    event = EventDoc.model_validate_json(EVENT % "Z")
    assert event.at == datetime(2026, 11, 20, 10, 0, 0, 250_000, UTC)
    assert event.at.utcoffset() is not None
    assert '"at":"2026-11-20T10:00:00.250000Z"' in event.model_dump_json()
    assert pickle.loads(pickle.dumps(event)) == event


def test_a_time_without_an_offset_is_refused():
    with pytest.raises(ValidationError, match="timezone"):
        EventDoc.model_validate_json(EVENT % "")
