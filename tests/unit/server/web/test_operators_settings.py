"""A service's settings in people's words."""

from __future__ import annotations

import pytest

from server.domain.service import Service
from server.settings.tables import ServiceTable
from server.web.operators.settings import (
    MEANINGS,
    errors_of,
    given_texts,
    sent_settings,
    sent_variables,
    settings_of,
    values_of,
)
from shared.settings.limits import LimitsTable


def test_every_setting_of_the_file_is_shown():
    limits = {f"limits.{name}" for name in LimitsTable.model_fields}
    known = {key.partition(".")[0] for key in MEANINGS} | {"env", "secrets", "webhook"}
    assert known == ServiceTable.model_fields.keys()
    assert {key for key in MEANINGS if "." in key} == limits


def test_the_defaults_are_those_of_the_file():
    assert values_of(ServiceTable().service("x")) == {
        one.key: one.default for one in settings_of(Service("x"))
    }
    assert not any(one.given for one in settings_of(ServiceTable().service("x")))


def test_what_a_form_shows_is_what_it_sends():
    given = {
        "timeout": "90s",
        "max_runs": 3,
        "retry_delays": ["10s", "60"],
        "dead_letter": True,
        "limits": {"memory": "8GiB", "network": False},
        "webhook": {"url": "https://x.example/", "events": ["job.failed"]},
    }
    assert sent_settings(given_texts(given)) == given
    assert sent_settings({"timeout": "  ", "else": "1"}) == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [("", None), (" \n", None), ("A=1\n B = x=y\n", {"A": "1", "B": " x=y"}), ("A=", {"A": ""})],
)
def test_variables_are_lines(text, found):
    assert sent_variables(text) == found


def test_each_key_of_a_refusal_has_its_reason():
    message = "timeout: 'x' is not a duration\nretry_on.1: no\nlimits.memory: not a size\nstrange"
    assert errors_of(message) == {
        "timeout": "'x' is not a duration",
        "retry_on": "no",
        "limits.memory": "not a size",
        "strange": "strange",
    }
