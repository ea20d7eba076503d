"""The pages of a job."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_FRAME: Final = "server/web/job/frame.py"
_ACTIONS: Final = "server/web/job/page.py"
_OVERVIEW: Final = "server/web/templates/job/overview.html"
_PAGES: Final = "tests/contract/test_job_pages.py::test_"
_FORMS: Final = "tests/contract/test_job_forms.py::test_"
_OFFERED: Final = "tests/unit/server/web/test_possible_actions.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("pages of a job", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "what happened between the page and its stream is shown, too",
        "server/web/live.py",
        'if after is None and "after" in request.query:',
        'if after is None and "afterwards" in request.query:',
        "tests/e2e/dashboard/test_job.py::test_what_happens_before_the_page_listens_is_shown",
    ),
    _of(
        "a link does not show where the job is announced",
        _FRAME,
        "if principal.role is Role.LINK:\n        # Whoever",
        "if False:\n        # Whoever",
        f"{_FORMS}whoever_comes_by_a_link_sees_the_job_keeps_the_link_and_changes_nothing",
    ),
    _of(
        "a link shows no children: they are other jobs",
        _FRAME,
        "with_children = job.children is not None and principal.role is not Role.LINK",
        "with_children = job.children is not None",
        f"{_FORMS}whoever_comes_by_a_link_sees_the_job_keeps_the_link_and_changes_nothing",
    ),
    _of(
        "what the token may not do is not offered",
        _FRAME,
        'if not may_use(principal, Area.JOBS, "POST") or',
        "if",
        f"{_OFFERED}who_may_only_look_is_offered_nothing_that_changes",
        f"{_FORMS}who_may_only_read_is_offered_nothing_that_changes",
    ),
    _of(
        "a cancel that is under way is not offered again",
        _FRAME,
        'possible |= {"cancel"} if job.cancel_requested_at is None else set()',
        'possible |= {"cancel"}',
        f"{_OFFERED}what_would_be_refused_is_not_offered",
        f"{_PAGES}a_cancel_that_takes_longer_is_said_and_not_offered_again",
    ),
    _of(
        "a job that is being cancelled is not said to be dead",
        _FRAME,
        "        if job.cancel_requested_at is not None:\n            waits",
        "        if False:\n            waits",
        f"{_PAGES}a_cancel_that_takes_longer_is_said_and_not_offered_again",
    ),
    _of(
        "stderr is text",
        _OVERVIEW,
        "{{ job.stderr_tail }}",
        "{{ job.stderr_tail|safe }}",
        f"{_PAGES}what_a_user_wrote_is_text_in_every_place",
    ),
    _of(
        "values are text",
        _OVERVIEW,
        "{{ value if value is string else value|tojson }}</td>",
        "{{ value|safe }}</td>",
        f"{_PAGES}what_a_user_wrote_is_text_in_every_place",
    ),
)
