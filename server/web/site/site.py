"""What the handlers of pages work with: the context of all handlers, and how a page is made."""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from aiohttp import hdrs, web
from markupsafe import Markup

from server.domain.access import Area, may_use
from server.http.browser_sessions import SESSION, cookie_name
from server.http.context import Context
from server.http.route import LINK_PARAMETER
from server.web.site import formats
from server.web.site.assets import assets
from server.web.site.csrf import FIELD, HEADER, CsrfTokens
from server.web.site.login_tries import LoginTries
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.http.request_ids import REQUEST_ID
from shared.principals import ANONYMOUS, Principal, Role
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
        self,
        request: web.Request,
        template: str,
        *,
        status: int = HTTPStatus.OK,
        headers: Mapping[str, str] | None = None,
        **values: Any,
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
        text = (
            _environment()
            .get_template(template)
            .render(**_Helpers(self, request, forms).all(), **values)
        )
        response = web.Response(
            status=status,
            text=text,
            content_type="text/html",
            headers=HEADERS,
        )
        response.headers.update(headers or {})
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
        return f"{self.context.url_prefix}{path}" + (f"?{urlencode(query)}" if query else "")

    def now(self) -> datetime:
        return utc(self.context.clock.now())

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
        response.set_cookie(
            self.cookie(name),
            value,
            path=f"{self.context.url_prefix}/",
            max_age=None if lifetime_s is None else math.ceil(lifetime_s),
            httponly=True,
            samesite="Lax",
            secure=request.secure or (self.context.public_url or "").startswith("https:"),
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


@dataclass(frozen=True, slots=True)
class _Helpers:
    """What all templates know."""

    site: Site
    request: web.Request
    forms: str
    """Whose forms those of the page are."""

    def all(self) -> dict[str, Any]:
        now = self.site.now()
        principal = self._principal
        return {
            "principal": principal,
            "Role": Role,
            "Area": Area,
            "may_use": functools.partial(may_use, principal),
            "prefix": self.site.context.url_prefix,
            "path": self.request.path,
            "version": self.site.context.version,
            "request_id": self.request.get(REQUEST_ID, ""),
            "logged_in": self.site.context.token_needed() and principal.authenticated,
            "asset": self.asset,
            "url": self.url,
            "csrf": self.csrf,
            "csrf_token": functools.partial(self.site.csrf.token, self.forms),
            "about": functools.partial(formats.about, now=now),
            "when": functools.partial(formats.when, now=now),
            "now": now,
        }

    def url(self, path: str, **query: object) -> str:
        """Address of a page or of a route of the API; whoever came by a signed link keeps it."""
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        if self._principal.role is Role.LINK:
            given[LINK_PARAMETER] = self.request.query.get(LINK_PARAMETER, "")
        return self.site.url(path, **given)

    def asset(self, name: str) -> str:
        return f"{self.site.context.url_prefix}/assets/{assets()[name].version}/{name}"

    def csrf(self) -> Markup:
        """The hidden field of a form that changes something."""
        token = self.site.csrf.token(self.forms)
        return Markup('<input type="hidden" name="{}" value="{}">').format(FIELD, token)

    @property
    def _principal(self) -> Principal:
        principal: Principal = self.request.get(PRINCIPAL, ANONYMOUS)
        return principal


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
