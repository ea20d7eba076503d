"""Who may do what, as rules."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from server.domain import access
from server.domain.access import Area
from server.domain.errors import NotAllowed
from shared.principals import ANONYMOUS, LOCAL, Principal, Role, Scope
from tests.kit.jobs import job

ANN = Principal("ann-laptop", Role.USER, "ann")
PORTAL = Principal("portal", Role.PORTAL)
AGENT = Principal("node-1", Role.AGENT)
SCRAPER = Principal("metrics-1", Role.METRICS)
TICKET = Principal("portal", Role.TICKET, acts_as="ann")
LINK = Principal("portal (link to job 7)", Role.LINK, job_id=7)
EVERYBODY = (ANONYMOUS, ANN, PORTAL, LOCAL, AGENT, SCRAPER, TICKET, LINK)


@pytest.mark.parametrize(
    ("area", "roles"),
    [
        (Area.OPEN, (ANONYMOUS, ANN, PORTAL, LOCAL, AGENT, SCRAPER)),
        (Area.METRICS, (LOCAL, SCRAPER)),
        (Area.STATUS, (ANN, PORTAL, LOCAL, AGENT)),
        (Area.JOBS, (ANN, PORTAL, LOCAL)),
        (Area.AGENTS, (LOCAL,)),
        (Area.TICKETS, (PORTAL, LOCAL)),
        (Area.ADMIN, (LOCAL,)),
    ],
)
def test_a_role_uses_only_the_routes_that_are_for_it(area, roles) -> None:
    for principal in EVERYBODY:
        if principal in roles:
            access.check_area(principal, area, None)
        else:
            with pytest.raises(NotAllowed):
                access.check_area(principal, area, None)


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
    visible = access.visible(principal)
    assert visible.has(job(user_id=user_id, submitted_by=submitted_by)) is sees


@pytest.mark.parametrize("principal", [AGENT, ANONYMOUS])
def test_agents_and_strangers_have_no_jobs(principal) -> None:
    with pytest.raises(NotAllowed):
        access.visible(principal)
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


@pytest.mark.parametrize(
    ("principal", "scope", "allowed"),
    [
        (ANN, Scope.MANAGE, True),
        (ANN, Scope.ADMIN, False),
        (replace(ANN, scopes=frozenset({Scope.READ})), Scope.READ, True),
        (replace(ANN, scopes=frozenset({Scope.READ})), Scope.MANAGE, False),
        (replace(ANN, scopes=frozenset({Scope.ADMIN})), Scope.ADMIN, False),
        (LOCAL, Scope.ADMIN, True),
    ],
)
def test_a_token_is_good_for_its_scopes_as_far_as_its_role_has_them(
    principal, scope, allowed
) -> None:
    if allowed:
        access.check_area(principal, Area.JOBS, scope)
    else:
        with pytest.raises(NotAllowed, match=f"lacks the scope {scope}"):
            access.check_area(principal, Area.JOBS, scope)


def test_a_portal_acts_as_one_of_its_users() -> None:
    portal = replace(PORTAL, users=("lab-*", "ann"))
    acting = access.acting_as(portal, "lab-7")
    assert access.visible(acting) == access.Visible("lab-7", "portal")
    access.check_upload(acting, "lab-7")
    with pytest.raises(NotAllowed, match="lab-7 only, not for ann"):
        access.check_upload(acting, "ann")
    for user in ("bob", "Lab-7", "ann2"):
        with pytest.raises(NotAllowed, match=r"its token is for lab-\*, ann"):
            access.acting_as(portal, user)
        with pytest.raises(NotAllowed, match=r"its token is for lab-\*, ann"):
            access.check_upload(portal, user)
    for principal in (ANN, LOCAL, AGENT, ANONYMOUS):
        with pytest.raises(NotAllowed, match="is no portal"):
            access.acting_as(principal, "ann")


def test_a_link_shows_its_job_and_neither_others_nor_a_schedule() -> None:
    visible = access.visible(LINK)
    assert visible.has(job(id=7))
    assert not visible.has(job(id=8))
    assert not visible.has(SimpleNamespace(id=7, user_id="ann", submitted_by="portal"))


def test_a_ticket_makes_jobs_of_its_user_only() -> None:
    access.check_upload(TICKET, "ann")
    with pytest.raises(NotAllowed):
        access.check_upload(TICKET, "bob")
