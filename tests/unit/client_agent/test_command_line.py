"""The agent's command line: where its options may stand."""

from __future__ import annotations

import pytest

from client_agent.__main__ import check_last


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("", ""),
        ("--port 0", "--port 0"),
        ("check", "check"),
        ("check --config x", "--config x check"),
        ("check --json --config x", "--config x check --json"),
        ("--config x check --json", "--config x check --json"),
        ("check --help", "check --help"),
        ("--name check", "--name check"),
    ],
)
def test_options_of_the_agent_may_stand_behind_check(given, taken):
    assert check_last(given.split()) == taken.split()
