"""The page about states is what the table says."""

from __future__ import annotations

from scripts import states


def test_the_page_about_states_is_generated_from_the_table() -> None:
    assert states.PAGE.read_text() == states.page(), "run python -m scripts.states"
