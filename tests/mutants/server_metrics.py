"""Metrics: for operators only, and with few values of labels."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_HTTP: Final = "tests/contract/test_metrics_http.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("metrics", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "metrics need a token of an operator",
        "server/api/server_status.py",
        "        Area.METRICS,\n",
        "        Area.OPEN,\n",
        f"{_HTTP}who_may_read_services_and_agents_may_read_them",
    ),
    _of(
        "a service that is not known makes no label",
        "server/metrics.py",
        "label = known(name, services)",
        "label = name",
        f"{_HTTP}a_service_that_is_not_known_is_counted_as_other",
    ),
    _of(
        "made-up methods make no label",
        "shared/http/measured.py",
        "method = known(request.method, _METHODS)",
        "method = request.method",
        f"{_HTTP}neither_users_nor_made_up_names_become_labels",
    ),
    _of(
        "made-up paths make no label",
        "shared/http/measured.py",
        "return OTHER if resource is None else resource.canonical",
        "return request.path",
        f"{_HTTP}neither_users_nor_made_up_names_become_labels",
    ),
    _of(
        "any number of scrapes makes the store count once",
        "server/metrics.py",
        "if of.clock.monotonic() >= self._stored_until:",
        "if of.clock.monotonic() > 0:",
        f"{_HTTP}a_crowd_that_asks_makes_the_store_count_once",
    ),
)
