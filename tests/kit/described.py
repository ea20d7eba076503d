"""Whether a server answers as its own OpenAPI document says: checked for every answer of a test."""

import functools
import json
import re
from collections.abc import Iterator, Mapping
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


@_FORMATS.checks("date-time")  # type: ignore[untyped-decorator]
def _is_time(value: object) -> bool:
    """Whether it is RFC 3339, in UTC as all our times are."""
    return not isinstance(value, str) or _TIME.fullmatch(value) is not None


class Described:
    """Looks at what an application sends; ``wrong`` is what the document does not say."""

    def __init__(self, application: web.Application) -> None:
        self.wrong: dict[str, None] = {}
        application.on_response_prepare.append(self._look)

    def check(self) -> None:
        assert not self.wrong, "not as /openapi.json says:\n" + "\n".join(self.wrong)

    async def _look(self, request: web.Request, response: web.StreamResponse) -> None:
        resource = request.match_info.route.resource
        if resource is None or request.method == hdrs.METH_OPTIONS or resource.canonical in _PAGES:
            return  # no route, or for people
        body = getattr(response, "body", None)
        of = f"{request.method} {resource.canonical} {response.status}"
        shown = f" ({body[:300]!r})" if isinstance(body, bytes) else ""
        for wrong in _wrong(request, resource.canonical, response):
            self.wrong[f"{of}: {wrong}{shown}"] = None


def _wrong(request: web.Request, path: str, response: web.StreamResponse) -> Iterator[str]:
    is_head = request.method == hdrs.METH_HEAD
    method = "get" if is_head else request.method.lower()
    document = described()
    operation = document["paths"].get(openapi_path(path), {}).get(method)
    if operation is None:
        yield "no such operation"
        return
    responses = operation["responses"]
    refused = responses["default"] if response.status >= 400 else None
    answer = followed(document, responses.get(str(response.status), refused))
    if answer is None:
        yield "no such status"
        return
    headers = answer["headers"].items()
    required = {name for name, header in headers if followed(document, header)["required"]}
    for name in required | _BY_STATUS.get(response.status, set()):
        if name not in response.headers:
            yield f"no header {name}"
    if not is_head and response.status != 304:
        yield from _wrong_in_body(answer.get("content", {}), response)


def _wrong_in_body(content: Mapping[str, Any], response: web.StreamResponse) -> Iterator[str]:
    kind, body = response.content_type, getattr(response, "body", None)
    if not content and body:
        yield "a body"
    elif content and not {kind, "*/*"} & content.keys():
        yield kind
    schema = content.get(kind, {}).get("schema", {})
    if "$ref" not in schema or not isinstance(response, web.Response):
        return
    assert isinstance(body, bytes)
    found = json.loads(body)
    for error in _validator(schema["$ref"]).iter_errors(found):
        yield f"{error.message[:300]} at {error.json_path}"
    code, known = found.get("code"), CODES.get(response.status, {})
    named = response.status == 400 and str(code).startswith("invalid_")
    if response.status >= 400 and code and code not in known and not named:
        yield f"code {code}"


@functools.cache
def described() -> Any:
    """The document; the same for all servers of a test run, since making it takes long."""
    return json.loads(describe(ROUTES, "", tokens=True))


def followed(document: Any, found: Any) -> Any:
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
