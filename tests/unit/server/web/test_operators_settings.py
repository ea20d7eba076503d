"""A service's settings in people's words."""

from __future__ import annotations

from server.domain.service import Service
from server.settings.tables import ServiceTable
from server.web.operators.services import MEANINGS, settings_of, values_of
from shared.settings.limits import LimitsTable


def test_every_setting_of_the_file_is_shown():
    limits = {f"limits.{name}" for name in LimitsTable.model_fields}
    known = {key.partition(".")[0] for key in MEANINGS} | {"env"}
    assert known == ServiceTable.model_fields.keys()
    assert {key for key in MEANINGS if "." in key} == limits


def test_the_defaults_are_those_of_the_file():
    assert values_of(ServiceTable().service("x")) == {
        one[0]: one[3] for one in settings_of(Service("x"))
    }
    assert not any(one[4] for one in settings_of(ServiceTable().service("x")))
