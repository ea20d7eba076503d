"""Values as people read them."""

from __future__ import annotations

import pytest

from server.web.formats import relative, sentence


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the agent is draining", "The agent is draining."),
        ("no agent offers it", "No agent offers it."),
        ("run.sh ended with exit code 3", "run.sh ended with exit code 3."),
        ("portable_names: 1 name is odd", "portable_names: 1 name is odd."),
        ("node-1: it is used again", "node-1: it is used again."),
        ("local: it is used again", "local: it is used again."),
        ("is it?", "Is it?"),
        ("<b>", "&lt;b&gt;."),
        ("", ""),
    ],
)
def test_a_message_becomes_a_sentence_and_names_stay_as_they_are(text, shown):
    assert sentence(text) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "just now"),
        (-59, "59 s ago"),
        (-60, "1 min ago"),
        (-86_399, "23 h ago"),
        (90_000, "in 1 d"),
    ],
)
def test_times_are_relative(seconds, shown):
    assert relative(seconds) == shown
