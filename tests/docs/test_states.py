"""The page about states is what the table says."""

from __future__ import annotations

from scripts import states


def test_the_page_about_states_is_generated_from_the_table() -> None:
    assert states.PAGE.read_text() == states.page(), "run python -m scripts.states"


def test_the_diagram_of_a_jobs_life_has_every_edge() -> None:
    assert states.diagram() in states.LIFECYCLE.read_text(), "run python -m scripts.states"
