"""What ``ferryman bench`` refuses before it sends anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.ferryman.conftest import Call


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "5"), "--rate: '5' is not a rate such as 20/s"),
        (("--rate", "5/s", "--concurrency", "3"), "an open loop or a closed one"),
        (("--size", "10MiB..1KiB"), "--size: '10MiB..1KiB' ends below its beginning"),
        (("--run-time", "soon"), "--run-time: 'soon' is not a duration"),
        (("--mix", "size=1"), "--mix: 'size=1' is not a kind such as"),
        (("--compare", "none.json"), "--compare none.json: No such file"),
        (("--url", "http://192.0.2.1:5000"), "? --yes says so"),
        (("--jobs", "0"), "should be a number, 1 to 1000000"),
    ],
)
async def test_wrong_words_are_bad_usage_before_anything_is_sent(
    ferryman: Call, words: tuple[str, ...], said: str
) -> None:
    found = await ferryman("bench", "-s", "example", *words)
    assert (found.code, found.out) == (2, "")
    assert said in found.err


async def test_the_help_has_words_for_values(ferryman: Call) -> None:
    found = await ferryman("bench", "--help")
    assert found.code == 0
    assert found.out.startswith("Usage: ferryman bench [OPTIONS]")
    assert "<" not in found.out


async def test_a_report_that_cannot_be_written_is_said_before_the_load(
    ferryman: Call, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    found = await ferryman("bench", "-s", "example", "--report", str(tmp_path / "file" / "r"))
    assert (found.code, found.out) == (73, "")
