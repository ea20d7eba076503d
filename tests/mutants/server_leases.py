"""Several servers over one store: who may do what, and who no longer."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STORE: Final = "server/store/leases.py"


def _store(protection: str, old: str, new: str, *tests: str) -> Mutant:
    names = tuple(f"tests/contract/store/test_leases.py::test_{test}" for test in tests)
    return Mutant("leases", protection, _STORE, old, new, names)


_LATER: Final = "a_lease_that_has_run_out_goes_to_another_with_a_higher_token"

MUTANTS: Final = (
    _store(
        "a lease is not taken over before its end",
        "leases.until <= now_us() OR :alone",
        "leases.until > 0 OR :alone",
        _LATER,
        "a_lease_stays_with_its_holder_while_it_is_renewed",
    ),
    _store(
        "each new owner has a higher token",
        "THEN leases.token + 1",
        "THEN leases.token",
        "a_token_is_never_given_twice_though_the_clock_stands_still_or_goes_back",
    ),
    _store(
        "tokens do not begin again after a restore",
        "now_us() / {SECOND}, {_UNTIL}",
        "1, {_UNTIL}",
        "tokens_go_on_though_the_database_was_put_back_from_an_earlier_copy",
    ),
    _store(
        "only one's own leases are renewed",
        "SET until = {_UNTIL} WHERE owner = :owner",
        "SET until = {_UNTIL} WHERE :owner = :owner",
        _LATER,
    ),
    _store(
        "the lease of a server that is gone ends for good",
        "{_SERVERS} AND until <= now_us()",
        "{_SERVERS} AND until <= 0",
        "a_server_is_running_until_its_lease_has_run_out",
    ),
    _store(
        "tokens outlast a release",
        "WHERE owner = :owner AND {_SERVERS}",
        "WHERE owner = :owner",
        "what_is_released_is_free_at_once_and_its_token_is_not_forgotten",
    ),
)
