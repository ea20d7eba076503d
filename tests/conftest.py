"""Settings of the whole session; fixtures live beside the tests that use them."""

from __future__ import annotations

import os

from hypothesis import settings

# deadline: a busy machine is no counterexample. derandomize: `make test` says the same thing twice;
# `make soak` is where new examples are looked for.
settings.register_profile("test", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("soak", parent=settings.get_profile("test"), derandomize=False)
settings.load_profile("soak" if "SOAK_SECONDS" in os.environ else "test")
