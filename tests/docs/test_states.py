"""The page about the life of a job has the table of states as it is."""

from __future__ import annotations

from scripts import states


def test_the_table_of_states_on_the_page_is_generated() -> None:
    assert states.BEGIN in states.PAGE.read_text()
    assert states.PAGE.read_text() == states.page(), "run python -m scripts.states"
