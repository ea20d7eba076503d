from __future__ import annotations

import pytest

from shared.metrics import gzip_accepted


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip; q=0.001", True),
        ("gzip;q=0", False),
        ("br, gzip ; Q = 0.000", False),
        ("identity", False),
        ("gzipped", False),
        ("", False),
    ],
)
def test_gzip_is_taken_where_it_is_named_and_not_refused(header: str, accepted: bool) -> None:
    assert gzip_accepted(header) is accepted
