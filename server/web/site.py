"""What the handlers of pages work with: how a page is made, the proof that a form was sent by one
of our pages, and the page of a request that is refused.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode, urlsplit

import jinja2
from aiohttp import hdrs, web
from markupsafe import Markup

from server.domain.access import Area, may_use
from server.domain.permits import Shows
from server.http.context import Context
from server.http.permits import SESSION, cookie_name
from server.http.problems import BACK, Refusal
from server.http.route import LINK_PARAMETER
from server.web import formats
from server.web.assets import assets
from shared.clock import Clock, utc
from shared.http.authentication import PRINCIPAL
from shared.http.rate_limits import CODE, Buckets
from shared.http.refusals import REQUEST_ID
from shared.principals import ANONYMOUS, Principal, Role, Scope
from shared.units.durations import say_duration
from shared.units.rates import Rate
from shared.units.sizes import say_size

HEADERS: Final[Mapping[str, str]] = {
    # Nothing from elsewhere, no script or style in a page itself.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; frame-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # Pages of other ports of this host are of the same site, too.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # An address may hold a link that is good by itself.
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_BROWSER: Final = "browser"
_PART: Final = "HX-Request"
"""Header of what the scripts of an open page ask for."""
_LEAST_COMPRESSED: Final = 1024


@dataclass(frozen=True, slots=True)
class Site:
    """Attributes:
    server_id: of the database; cookies of several servers of one host must not meet.
    csrf: makes and knows the tokens of forms.
    tries: counts wrong tokens.
    """

    context: Context
    server_id: str
    csrf: CsrfTokens
    tries: LoginTries

    # -- pages

    def page(
        self, request: web.Request, template: str, *, status: int = HTTPStatus.OK, **values: Any
    ) -> web.Response:
        """A page.

        Args:
            template: below ``server/web/templates``.
            values: what the template shows, beside what all of them know.
        """
        browser = request.cookies.get(self.cookie(_BROWSER)) or secrets.token_urlsafe(24)
        forms = self._sender(request, browser)
        is_part = _PART in request.headers and status < HTTPStatus.BAD_REQUEST
        values["layout"] = "site/part.html" if is_part else "site/layout.html"
        known = _known(self, request, forms)
        text = _environment().get_template(template).render(**known, **values)
        response = web.Response(status=status, text=text, content_type="text/html", headers=HEADERS)
        if request.cookies.get(self.cookie(_BROWSER)) != browser:
            self.set_cookie(request, response, _BROWSER, browser)
        if len(text) >= _LEAST_COMPRESSED:
            response.enable_compression()
        return response

    def go_to(self, path: str, **query: str) -> web.Response:
        """On to another page, after a form was taken: a reload then sends nothing again."""
        there = self.url(path, **query)
        return web.Response(status=HTTPStatus.SEE_OTHER, headers={hdrs.LOCATION: there})

    def url(self, path: str, **query: str) -> str:
        """Address of one of our pages, as browsers know it."""
        return f"{self.context.core.settings.server.url_prefix}{path}" + (
            f"?{urlencode(query)}" if query else ""
        )

    def now(self) -> datetime:
        return utc(self.context.core.clock.now())

    # -- cookies

    def cookie(self, name: str) -> str:
        """What a cookie of this server is called."""
        return cookie_name(self.server_id, name)

    def set_cookie(
        self,
        request: web.Request,
        response: web.StreamResponse,
        name: str,
        value: str,
        lifetime_s: float | None = None,
    ) -> None:
        """Scripts cannot read it; other sites' forms do not send it.

        Args:
            lifetime_s: None: until the browser is closed; 0: it is deleted.
        """
        table = self.context.core.settings.server
        response.set_cookie(
            self.cookie(name),
            value,
            path=f"{table.url_prefix}/",
            max_age=None if lifetime_s is None else math.ceil(lifetime_s),
            httponly=True,
            samesite="Lax",
            secure=request.secure
            or (self.context.core.settings.server.origin or "").startswith("https:"),
        )

    # -- forms

    async def sent_by_page(self, request: web.Request) -> bool:
        """Whether the request was sent by one of our pages, which alone know the token.

        A form with files names it in its address: its body is not read here.
        """
        token = request.headers.get(HEADER) or request.query.get(FIELD)
        if token is None and request.content_type == "application/x-www-form-urlencoded":
            token = str((await request.post()).get(FIELD, ""))
        browser = request.cookies.get(self.cookie(_BROWSER), "")
        return bool(browser) and self.csrf.good(self._sender(request, browser), token or "")

    def _sender(self, request: web.Request, browser: str) -> str:
        """Whose form it is: of a browser, and of its session, where it has one. So no form is good
        that somebody else was given, even if the browser was made to take their cookie.
        """
        return f"{browser} {request.cookies.get(self.cookie(SESSION), '')}"


SITE: Final = web.AppKey("site", Site)


def _known(site: Site, request: web.Request, forms: str) -> dict[str, Any]:
    """What all templates know.

    Args:
        forms: whose forms those of the page are.
    """
    now, context = site.now(), site.context
    principal: Principal = request.get(PRINCIPAL, ANONYMOUS)

    def url(path: str, **query: object) -> str:
        """Of a page or of a route of the API; whoever came by a signed link keeps it."""
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        if principal.role is Role.LINK:
            given[LINK_PARAMETER] = request.query.get(LINK_PARAMETER, "")
        return site.url(path, **given)

    def csrf() -> Markup:
        """The hidden field of a form that changes something."""
        token = site.csrf.token(forms)
        return Markup('<input type="hidden" name="{}" value="{}">').format(FIELD, token)

    return {
        "principal": principal,
        "Role": Role,
        "Area": Area,
        "may_use": functools.partial(may_use, principal),
        "path": request.path,
        "version": context.version,
        "request_id": request.get(REQUEST_ID, ""),
        "logged_in": context.access.known.needed and principal.authenticated,
        "asset": lambda name: site.url(f"/assets/{assets()[name].version}/{name}"),
        "url": url,
        "csrf": csrf,
        "csrf_token": functools.partial(site.csrf.token, forms),
        "about": functools.partial(formats.about, now=now),
        "when": functools.partial(formats.when, now=now),
        "now": now,
    }


def template_names() -> list[str]:
    """All that there are."""
    return _environment().list_templates()


def compile_template(name: str) -> None:
    """So that the first page that needs it does not wait for that."""
    _environment().get_template(name)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("server.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        extensions=["jinja2.ext.do"],
    )
    environment.filters |= {
        "size": say_size,
        "duration": formats.duration,
        "number": formats.number,
        "sentence": formats.sentence,
    }
    return environment


Handler: TypeAlias = Callable[[web.Request, Site], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class PageRoute:
    """What is served at a path, for people.

    Attributes:
        area: who may open it, see :mod:`server.domain.access`.
        needs: scope that the principal needs; None: what its area and its method ask for.
        by_link: signed links that are good for it.
        files: its handler reads a form with files; other handlers take none, however small: each
            part of one costs as much as a hundred fields of a form without.
    """

    method: str
    path: str
    area: Area
    handler: Handler
    needs: Scope | None = None
    by_link: tuple[Shows, ...] = ()
    files: bool = False


FIELD: Final = "csrf"
"""Of a form, or parameter of the query where the body is no plain form."""
HEADER: Final = "X-CSRF-Token"
_TEXT: Final = re.compile(r"[0-9a-f]{64}")
_HALF: Final = 32
"""Characters."""


class CsrfTokens:
    """Args:
    key: secret, of the server.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def token(self, browser: str) -> str:
        """For a form of a page.

        It is another text each time: what is compressed together with text from outside could be
        guessed from the length otherwise.

        Args:
            browser: what its cookie says.
        """
        mask = secrets.token_bytes(_HALF // 2)
        return mask.hex() + _xor(mask, self._secret(browser)).hex()

    def good(self, browser: str, token: str) -> bool:
        """Whether one of our pages in this browser has sent it."""
        if not browser or not _TEXT.fullmatch(token):
            return False
        mask, masked = bytes.fromhex(token[:_HALF]), bytes.fromhex(token[_HALF:])
        return hmac.compare_digest(_xor(mask, masked), self._secret(browser))

    def _secret(self, browser: str) -> bytes:
        text = f"csrf.{browser}".encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, text, hashlib.sha256)[: _HALF // 2]


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


LOGIN: Final = "/login"
_SAY: Final = {
    HTTPStatus.BAD_REQUEST: "This cannot be done as it was asked",
    HTTPStatus.UNAUTHORIZED: "Please log in",
    HTTPStatus.FORBIDDEN: "This is not for you",
    HTTPStatus.NOT_FOUND: "There is nothing here",
    HTTPStatus.METHOD_NOT_ALLOWED: "This cannot be done here",
    HTTPStatus.CONFLICT: "This cannot be done now",
    HTTPStatus.GONE: "This is gone",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "This is too large",
    HTTPStatus.MISDIRECTED_REQUEST: "This server has another name",
    HTTPStatus.UNPROCESSABLE_ENTITY: "This cannot be done as it was asked",
    HTTPStatus.TOO_MANY_REQUESTS: "That was too much at once",
    HTTPStatus.INTERNAL_SERVER_ERROR: "Something went wrong here",
    HTTPStatus.SERVICE_UNAVAILABLE: "This does not work right now",
    HTTPStatus.INSUFFICIENT_STORAGE: "The server's disk is full",
}


def _back_from(request: web.Request, site: Site) -> str:
    """The login, which leads back to the page that the request came from."""
    shown = urlsplit(request.headers.get("HX-Current-URL", "")[:2_000])
    path = shown.path.removeprefix(site.context.core.settings.server.url_prefix) or "/"
    return site.url(LOGIN, next=f"{path}?{shown.query}" if shown.query else path)


def error_page(request: web.Request, refusal: Refusal) -> web.Response:
    """The page; whoever is not logged in is sent to the login."""
    site = request.app[SITE]
    status = HTTPStatus(refusal.status)
    by_link = LINK_PARAMETER in request.query
    if status is HTTPStatus.UNAUTHORIZED and not by_link:
        if "HX-Request" in request.headers:  # a part of a page: the whole page has to go there
            return web.Response(status=status, headers={"HX-Redirect": _back_from(request, site)})
        if request.method in ("GET", "HEAD"):
            return site.go_to(LOGIN, next=request.path_qs)
    return site.page(
        request,
        "site/error.html",
        status=status,
        title=_SAY.get(status, status.phrase),
        code=refusal.code,
        status_text=f"{status.value} {status.phrase}",
        message=refusal.message,
        part=refusal.part,
        back=request.get(BACK),
        log_in=status is HTTPStatus.UNAUTHORIZED,
        retry_after_s=refusal.retry_after_s,
    )


_RATE: Final = Rate(10, "m")


class LoginTries:
    """Wrong tokens, by the address that they came from: of IPv6, its /64 network."""

    def __init__(self, clock: Clock) -> None:
        self._buckets = Buckets(clock)

    def check(self, address: str) -> None:
        """Raises Refusal: there were too many; the next token is not even looked at."""
        if wait_s := self._buckets.wait_s(address, _RATE):
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                CODE,
                f"too many wrong tokens came from {address}: "
                f"try again in {say_duration(float(wait_s))}",
                retry_after_s=wait_s,
            )

    def count(self, address: str) -> None:
        """Count a wrong one."""
        self._buckets.take(address, _RATE)
