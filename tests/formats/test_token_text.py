"""The text of API tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain.tokens import (
    ID_LENGTH,
    ID_LETTERS,
    LETTERS,
    SECRET_LENGTH,
    BadToken,
    read,
    text_of,
)

IDS = st.text(ID_LETTERS, min_size=ID_LENGTH, max_size=ID_LENGTH)
SECRETS = st.text(LETTERS, min_size=SECRET_LENGTH, max_size=SECRET_LENGTH)
TEXT = text_of("0123456789", "s" * SECRET_LENGTH)


@given(IDS, SECRETS)
def test_a_token_is_read_as_it_was_made(token_id: str, secret: str) -> None:
    text = text_of(token_id, secret)
    assert text.startswith(f"ferryman_{token_id}_{secret}")
    assert read(text) == (token_id, secret)


def test_the_checksum_is_that_of_its_letters() -> None:
    assert TEXT == "ferryman_0123456789_" + "s" * 32 + "274pok"


@given(IDS, SECRETS, st.data())
def test_a_letter_that_is_wrong_is_noticed(token_id: str, secret: str, data: st.DataObject) -> None:
    text = text_of(token_id, secret)
    at = data.draw(st.integers(len("ferryman_"), len(text) - 1))
    other = data.draw(st.sampled_from(sorted(set(LETTERS) - {text[at]})))
    with pytest.raises(BadToken, match="it is mistyped"):
        read(text[:at] + other + text[at + 1 :])


@pytest.mark.parametrize("text", [TEXT[:-1], TEXT + "x", "ferryman_", TEXT + "\n"])
def test_a_token_that_is_not_whole_is_said_to_be_that(text: str) -> None:
    with pytest.raises(BadToken, match=f"has 58 characters, this one {len(text)}") as refusal:
        read(text)
    assert "sss" not in str(refusal.value)
