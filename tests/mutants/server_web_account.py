"""Sessions of browsers, and the pages around them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STAGE: Final = "server/stages/sessions.py"
_LOGIN: Final = "server/web/account/login.py"
_LINKS: Final = "tests/contract/test_login_links.py::test_"
_ISOLATION: Final = "tests/contract/test_page_isolation.py::test_"
_ROUTES: Final = "server/web/routes.py"
_TOKENS: Final = "tests/contract/test_tokens_pages.py::test_"
_PAGES: Final = "tests/contract/test_login_pages.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("sessions", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "a session alone changes nothing by the API",
        "server/http/browser_sessions.py",
        "if request.method not in _SAFE:",
        "if False:",
        f"{_PAGES}a_session_alone_changes_nothing_by_the_api",
    ),
    _of(
        "a token counts, not the session beside it",
        "server/http/browser_sessions.py",
        "if hdrs.COOKIE not in headers or hdrs.AUTHORIZATION in headers:",
        "if hdrs.COOKIE not in headers:",
        f"{_PAGES}a_token_or_link_counts_and_the_session_beside_it_does_not",
    ),
    _of(
        "an expired or ended session is refused",
        _STAGE,
        "if record is None or not record.live(now):",
        "if record is None:",
        f"{_PAGES}whoever_logs_out_is_logged_out_here_and_on_the_server",
    ),
    _of(
        "a session ends when its token is revoked or expires",
        "server/stages/tokens.py",
        "if known is None or not known[0].live(now):",
        "if known is None:",
        f"{_PAGES}a_session_ends_with_its_token",
    ),
    _of(
        "the text of a session is not kept",
        _STAGE,
        "            digest_of(text),\n",
        "            text,\n",
        f"{_PAGES}a_session_is_a_cookie_that_scripts_and_other_sites_cannot_use",
    ),
    _of(
        "somebody else's session cannot be ended",
        _STAGE,
        "if one.principal == principal.name and one.live(now) and",
        "if one.live(now) and",
        f"{_PAGES}nobody_sees_or_ends_a_session_of_somebody_else",
    ),
    _of(
        "logging in ends the session before",
        _LOGIN,
        "    if former:\n",
        "    if False:\n",
        f"{_PAGES}each_login_is_another_session_and_ends_the_one_before",
    ),
    _of(
        "a form is good for the session that it was made for",
        "server/web/site/site.py",
        "return f\"{browser} {request.cookies.get(self.cookie(SESSION), '')}\"",
        "return browser",
        f"{_PAGES}each_login_is_another_session_and_ends_the_one_before",
    ),
    _of(
        "a login leads to this server only",
        _LOGIN,
        "return text if good and path not in (LOGIN, LOGIN_ONCE, LOGOUT) else _START",
        "return text or _START",
        f"{_PAGES}after_the_login_nobody_is_led_away_from_the_server",
    ),
    _of(
        "wrong tokens are limited",
        _LOGIN,
        "        site.tries.count(peer)\n",
        "",
        f"{_PAGES}wrong_tokens_are_limited_for_each_address",
    ),
    _of(
        "one principal begins so many sessions an hour at most",
        "server/web/site/login_tries.py",
        "        self._begun.take(principal, _SESSIONS)\n",
        "",
        f"{_PAGES}nobody_fills_the_database_with_sessions",
    ),
    _of(
        "sessions that begin by a link are counted, too",
        _LOGIN,
        "    site.tries.begin(principal.name)\n",
        "",
        f"{_PAGES}nobody_fills_the_database_with_sessions",
    ),
    _of(
        "a login with a thousand parts costs nothing",
        "server/web/routes.py",
        'if unsafe and not route.files and request.content_type.startswith("multipart/"):',
        "if False:",
        f"{_PAGES}only_the_page_that_uploads_takes_parts",
    ),
    _of(
        "one principal has so many sessions at most",
        "server/store/sessions.py",
        "for one in others[most - 1 :]:",
        "for one in others[len(others) :]:",
        f"{_PAGES}the_oldest_sessions_end_when_there_are_too_many",
    ),
    _of(
        "a login link is good once",
        "server/store/sessions.py",
        "if once is not None and not await use_ticket(tx, once):",
        "if False:",
        f"{_LINKS}a_link_logs_a_browser_in_once",
    ),
    _of(
        "a restored backup forgets its sessions",
        "server/store/copies.py",
        'connection.execute("DELETE FROM sessions")',
        "pass",
        "tests/contract/test_backup.py::test_the_restored_server_knows_no_session",
    ),
    _of(
        "pages of operators are for operators",
        _ROUTES,
        "            check_area(principal, route.area, route.needs or scope_of(route.area, route.method))\n",
        "            pass\n",
        f"{_ISOLATION}pages_of_operators_are_for_operators",
    ),
    _of(
        "a form counts only if a page of ours sent it",
        _ROUTES,
        "if not await site.sent_by_page(request):",
        "if False:",
        f"{_TOKENS}nothing_is_done_without_a_form_of_this_server",
    ),
    _of(
        "whoever is not logged in sees no page",
        "shared/http/middleware.py",
        "is_open = path in (self._open if safe else self._open_forms)",
        "is_open = True",
        f"{_ISOLATION}whoever_is_not_logged_in_is_sent_to_the_login",
    ),
)
