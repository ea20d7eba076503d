"""Who may do what, as rules."""

from __future__ import annotations

import pytest

from server.domain import access
from server.domain.access import Area
from server.domain.errors import NotAllowed
from shared.principals import ANONYMOUS, LOCAL, Principal, Role
from tests.support.jobs import job

ANN = Principal("ann-laptop", Role.USER, "ann")
PORTAL = Principal("portal", Role.PORTAL)
AGENT = Principal("node-1", Role.AGENT)
EVERYBODY = (ANONYMOUS, ANN, PORTAL, LOCAL, AGENT)


@pytest.mark.parametrize(
    ("area", "roles"),
    [
        (Area.OPEN, (ANONYMOUS, ANN, PORTAL, LOCAL, AGENT)),
        (Area.STATUS, (ANN, PORTAL, LOCAL, AGENT)),
        (Area.JOBS, (ANN, PORTAL, LOCAL)),
        (Area.AGENTS, (LOCAL,)),
    ],
)
def test_a_role_uses_only_the_routes_that_are_for_it(area, roles) -> None:
    for principal in EVERYBODY:
        if principal in roles:
            access.check_area(principal, area)
        else:
            with pytest.raises(NotAllowed):
                access.check_area(principal, area)


@pytest.mark.parametrize(
    ("principal", "user_id", "submitted_by", "sees"),
    [
        (ANN, "ann", "portal", True),
        (ANN, "ann", None, True),
        (ANN, "bob", "ann-laptop", False),
        (ANN, "Ann", None, False),
        (PORTAL, "bob", "portal", True),
        (PORTAL, "bob", "portal-2", False),
        (PORTAL, "portal", None, False),
        (LOCAL, "bob", None, True),
    ],
)
def test_users_see_their_own_jobs_and_portals_what_they_submitted(
    principal, user_id, submitted_by, sees
) -> None:
    scope = access.scope(principal)
    assert scope.has(job(user_id=user_id, submitted_by=submitted_by)) is sees


@pytest.mark.parametrize("principal", [AGENT, ANONYMOUS])
def test_agents_and_strangers_have_no_jobs(principal) -> None:
    with pytest.raises(NotAllowed):
        access.scope(principal)
    with pytest.raises(NotAllowed):
        access.check_upload(principal, "ann")


def test_a_user_uploads_as_itself_and_others_for_anybody() -> None:
    for principal in (ANN, PORTAL, LOCAL):
        access.check_upload(principal, "ann")
    for principal in (PORTAL, LOCAL):
        access.check_upload(principal, "bob")
    with pytest.raises(NotAllowed, match="ann only, not for bob"):
        access.check_upload(ANN, "bob")


@pytest.mark.parametrize(
    ("role", "user_id"), [(Role.USER, None), (Role.USER, ""), (Role.PORTAL, "ann")]
)
def test_a_user_without_a_user_id_cannot_be_made(role, user_id) -> None:
    """It would see the jobs of everybody."""
    with pytest.raises(ValueError, match="user_id"):
        Principal("x", role, user_id)
