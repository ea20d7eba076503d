"""Whether a server answers as its own OpenAPI document says: checked for every answer of a test."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import hdrs, web
from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]

from server.api.openapi_document import describe, openapi_path
from server.api.routes import ROUTES
from server.api.texts import CODES
from server.web.routes import ROUTES as PAGES

_PAGES: Final = frozenset(page.path for page in PAGES)
_BY_STATUS: Final = {
    401: {"WWW-Authenticate"},
    **{status: {"Retry-After"} for status in (429, 503, 507)},
}
"""Headers of refusals."""
_FORMATS: Final = FormatChecker(())
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


def is_time(value: object) -> bool:
    """Whether it is RFC 3339, in UTC as all our times are."""
    return not isinstance(value, str) or _TIME.fullmatch(value) is not None


_FORMATS.checks("date-time")(is_time)


class Described:
    """Looks at what an application sends.

    Attributes:
        wrong: what the document does not say, in sentences.
    """

    def __init__(self, application: web.Application) -> None:
        self.wrong: dict[str, None] = {}
        application.on_response_prepare.append(self._look)

    def check(self) -> None:
        """Fail if an answer was not as described."""
        assert not self.wrong, "not as /openapi.json says:\n" + "\n".join(self.wrong)

    async def _look(self, request: web.Request, response: web.StreamResponse) -> None:
        resource = request.match_info.route.resource
        if resource is None or request.method == hdrs.METH_OPTIONS:
            return  # no route
        if resource.canonical in _PAGES:
            return  # for people
        method = "get" if request.method == hdrs.METH_HEAD else request.method.lower()
        where = f"{request.method} {resource.canonical} {response.status}"
        document = described()
        operation = document["paths"].get(openapi_path(resource.canonical), {}).get(method)
        if operation is None:
            self.wrong[f"{where}: no such operation"] = None
            return
        responses = operation["responses"]
        refused = responses["default"] if response.status >= 400 else None
        answer = followed(document, responses.get(str(response.status), refused))
        if answer is None:
            self.wrong[f"{where}: no such status{_code(response)}"] = None
            return
        required = {
            name
            for name, header in answer["headers"].items()
            if followed(document, header)["required"]
        }
        for name in required | _BY_STATUS.get(response.status, set()):
            if name not in response.headers:
                self.wrong[f"{where}: no header {name}{_code(response)}"] = None
        if request.method != hdrs.METH_HEAD and response.status != 304:
            self._look_at_body(where, answer, response)

    def _look_at_body(
        self,
        where: str,
        answer: Mapping[str, Any],
        response: web.StreamResponse,
    ) -> None:
        content = answer.get("content", {})
        kind = response.content_type
        if not content:
            if getattr(response, "body", None):
                self.wrong[f"{where}: a body"] = None
            return
        if kind not in content and "*/*" in content:
            return
        if kind not in content:
            self.wrong[f"{where}: {kind}{_code(response)}"] = None
            return
        schema = content[kind]["schema"]
        if "$ref" not in schema or not isinstance(response, web.Response):
            return
        body = response.body
        assert isinstance(body, bytes)
        found = json.loads(body)
        for error in _validator(schema["$ref"]).iter_errors(found):
            self.wrong[f"{where}: {error.message[:300]} at {error.json_path}"] = None
        code = found.get("code")
        known = CODES.get(response.status, {})
        named = response.status == 400 and str(code).startswith("invalid_")
        if response.status >= 400 and code and code not in known and not named:
            self.wrong[f"{where}: code {code}"] = None


def _code(response: web.StreamResponse) -> str:
    body = getattr(response, "body", None)
    return f" ({body[:300]!r})" if isinstance(body, bytes) else ""


@functools.cache
def described() -> Any:
    """The document; the same for all servers of a test run, since making it takes long."""
    return json.loads(describe(ROUTES, "", tokens=True))


def followed(document: Any, found: Any) -> Any:
    """What is meant by a reference."""
    while isinstance(found, dict) and "$ref" in found:
        to = found["$ref"]
        found = document
        for step in to.removeprefix("#/").split("/"):
            found = found[step]
    return found


@functools.cache
def _validator(ref: str) -> Any:
    schemas = described()["components"]["schemas"]
    strict = {
        name: one | ({"additionalProperties": False} if "properties" in one else {})
        for name, one in schemas.items()
    }
    schema = {"$ref": ref, "components": {"schemas": strict}}
    return Draft202012Validator(schema, format_checker=_FORMATS)
