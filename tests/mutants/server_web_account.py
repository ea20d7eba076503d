"""Sessions of browsers, and the pages around them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STAGE: Final = "server/stages/sessions.py"
_LOGIN: Final = "server/web/login.py"
_LINKS: Final = "tests/contract/test_login_links.py::test_"
_ISOLATION: Final = "tests/contract/test_page_isolation.py::test_"
_ROUTES: Final = "server/web/routes.py"
_TOKENS: Final = "tests/contract/test_tokens_pages.py::test_"
_SESSIONS: Final = "tests/unit/server/stages/test_sessions.py::test_"
_PAGES: Final = "tests/contract/test_login_pages.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("sessions", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "a session alone changes nothing by the API",
        "server/http/permits.py",
        "if request.method not in _SAFE:",
        "if False:",
        f"{_PAGES}a_session_alone_changes_nothing_by_the_api",
    ),
    _of(
        "a token counts, not the session beside it",
        "server/http/permits.py",
        "if hdrs.COOKIE not in headers or hdrs.AUTHORIZATION in headers:",
        "if hdrs.COOKIE not in headers:",
        f"{_PAGES}a_token_or_link_counts_and_the_session_beside_it_does_not",
    ),
    _of(
        "a session that was ended is refused, and each copy of it",
        _STAGE,
        "if session.ended_before != self._ended.get(_token(session), 0):",
        "if False:",
        f"{_SESSIONS}logging_out_ends_each_copy_of_each_cookie_of_the_token",
    ),
    _of(
        "a restarted server knows which sessions were ended",
        _STAGE,
        "self._ended = await rows.ended(self._database)",
        "pass",
        f"{_SESSIONS}logging_out_ends_each_copy_of_each_cookie_of_the_token",
    ),
    _of(
        "a cookie shows no digest of a token of the settings",
        "server/domain/permits.py",
        'return _encoded(hmac.digest(self._key, f"digest.{text}".encode(), hashlib.sha256))',
        "return text",
        f"{_SESSIONS}a_cookie_tells_nothing_of_a_token_of_the_settings",
    ),
    _of(
        "a session ends when its token is revoked or expires",
        "server/stages/tokens.py",
        "if known is None or not known[0].live(now):",
        "if known is None:",
        f"{_PAGES}a_session_ends_with_its_token",
    ),
    _of(
        "a form is good for the session that it was made for",
        "server/web/site.py",
        "return f\"{browser} {request.cookies.get(self.cookie(SESSION), '')}\"",
        "return browser",
        f"{_PAGES}each_login_is_another_session_with_forms_of_its_own",
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
        "a login with a thousand parts costs nothing",
        "server/web/routes.py",
        'if unsafe and not route.files and request.content_type.startswith("multipart/"):',
        "if False:",
        f"{_PAGES}only_the_page_that_uploads_takes_parts",
    ),
    _of(
        "a login link is good once",
        _STAGE,
        "if once is not None and not await rows.log_in_once(self._database, once):",
        "if False:",
        f"{_LINKS}a_link_logs_a_browser_in_once",
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
