"""The portal that the guide shows is the one that a browser tries in ``tests/e2e``."""

from __future__ import annotations

from tests.docs.conftest import blocks
from tests.support.dev_program import ROOT


def test_the_portal_in_the_guide_is_the_one_that_is_tried():
    shown = [block.text for block in blocks("docs/portals.md") if block.kind == "python"]
    assert shown == [(ROOT / "examples" / "portal" / "portal.py").read_text()]
