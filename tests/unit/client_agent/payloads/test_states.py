from client_agent.payloads import payload as states
from shared.wire import PayloadState


def test_every_state_has_its_place_in_the_table():
    assert set(states.NEXT) == set(PayloadState)


def test_the_derived_sets_are_what_their_names_say():
    assert {PayloadState.PREPARED, PayloadState.RUNNING} == states.LIVE
    assert set(PayloadState) - states.LIVE == states.ENDED


def test_what_has_ended_can_only_be_cleaned():
    for state in states.ENDED - {PayloadState.CLEANED}:
        assert states.NEXT[state] == {PayloadState.CLEANED}
    assert not states.NEXT[PayloadState.CLEANED]


def test_every_state_can_be_reached_from_the_first():
    reached, at = set(), {states.FIRST}
    while at:
        reached |= at
        at = {after for state in at for after in states.NEXT[state]} - reached
    assert reached == set(PayloadState)
