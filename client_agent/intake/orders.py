"""What a Ferryman server may order: parsed, and checked before anything is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from client_agent.payloads.errors import Refused
from shared.files.bundles.format import BundleSummary
from shared.files.globs import MAX_PATTERNS, check_pattern
from shared.files.names import BundleError, UnsafeName, safe_path
from shared.ids import AttemptKey
from shared.variables import check_variable
from shared.wire import MAX_LINE, Order, PayloadsRequest

_RESERVED: Final = frozenset({"HOME", "TMPDIR"})
MAX_VARIABLES: Final = 256
MAX_ENV_BYTES: Final = 48 << 10
"""Of names and values together; an order has at most MAX_ORDER_BYTES."""
MAX_ORDER_BYTES: Final = 128 << 10
"""Of a text field beside plain files."""
MAX_ORDERS: Final = 500
"""In one request, and so many acknowledgements."""
_MAX_KEPT_INDEX: Final = 2**53


def parse_head(line: bytes) -> PayloadsRequest:
    """The line of ``POST /payloads``; each of its orders is still to be checked. Raises Refused."""
    try:
        head = PayloadsRequest.model_validate_json(line)
    except ValidationError as problem:
        first = problem.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refused(400, "invalid_order", f"order: {where}: {first['msg']}") from None
    for name, number in (("orders", len(head.orders)), ("acknowledge", len(head.acknowledge))):
        if number > MAX_ORDERS:
            message = f"{name}: {number} of them, at most {MAX_ORDERS} are taken at once"
            raise Refused(413, "too_large", message)
    if len(head.sizes) != len(head.orders):
        raise Refused(400, "invalid_order", "sizes: one is needed for each order")
    return head


def lengths(head: PayloadsRequest) -> list[int]:
    """Bytes behind the line that belong to each order: its bundle, and its inputs behind it."""
    return [
        size + (order.inputs.size if size and order.inputs is not None else 0)
        for order, size in zip(head.orders, head.sizes, strict=True)
    ]


def parse_bundles(head: PayloadsRequest, body: bytes) -> list[tuple[Order, int, memoryview]]:
    """The orders, the sizes of their bundles, and what is behind the line for each. Raises
    Refused."""
    parts = lengths(head)
    if sum(parts) != len(body):
        why = f"{len(body)} bytes follow the line, its sizes say {sum(parts)}"
        raise Refused(400, "wrong_length", why)
    found, at = list[tuple[Order, int, memoryview]](), 0
    for order, size, length in zip(head.orders, head.sizes, parts, strict=True):
        found.append((order, size, memoryview(body)[at : at + length]))
        at += length
    return found


def check_order(order: Order) -> AttemptKey:
    """Whether what the order names can be there, and its variables be set; its key. Raises
    Refused."""
    try:
        key = AttemptKey.parse(order.key)
    except ValueError as problem:
        raise Refused(400, "invalid_order", f"order: {problem}") from None
    if order.folder:
        _check_path("folder", order.folder.removesuffix("/"))
        if not order.folder.endswith("/"):
            raise Refused(400, "invalid_order", "order: folder: it has to end in /")
    _check_path("entry", order.entry)
    if order.entry.startswith("-"):
        raise Refused(400, "invalid_order", "order: entry: it would be an option of bash")
    if order.array is not None:
        if not 0 <= order.array.index < _MAX_KEPT_INDEX:
            raise Refused(400, "invalid_order", "order: array.index: it has to be 0 or more")
        line = order.array.line or ""
        if "\0" in line or len(line.encode(errors="replace")) > MAX_LINE:
            why = f"array.line: it has a NUL, or more than {MAX_LINE} bytes"
            raise Refused(400, "invalid_order", f"order: {why}")
    _check_outputs(order.outputs)
    _check_env(order.env)
    return key


def check_bundle(order: Order, summary: BundleSummary) -> None:
    """Whether it is the bundle that was ordered. Raises BundleError."""
    if summary.size != order.bundle_size:
        why = f"the bundle has {summary.size} bytes, the order says {order.bundle_size}"
        raise BundleError("wrong_size", why)
    if summary.digest != order.bundle_digest:
        why = f"the bundle's digest is {summary.digest}, the order says {order.bundle_digest}"
        raise BundleError("digest_mismatch", why)


def _check_outputs(patterns: Sequence[str]) -> None:
    if len(patterns) > MAX_PATTERNS:
        message = f"order: outputs: {len(patterns)} patterns, at most {MAX_PATTERNS} are taken"
        raise Refused(400, "invalid_order", message)
    try:
        for one in patterns:
            check_pattern(one)
    except ValueError as problem:
        raise Refused(400, "invalid_order", f"order: outputs: {problem}") from None


def _check_path(field: str, path: str) -> None:
    try:
        if safe_path(path) == path:
            return
        why = "it is not normalised (NFC)"
    except UnsafeName as problem:
        why = str(problem)
    raise Refused(400, "invalid_order", f"order: {field}: {why}")


def _check_env(env: dict[str, str]) -> None:
    """No value is in a message: it may be secret."""
    why = ""
    if len(env) > MAX_VARIABLES:
        why = f"{len(env)} variables, at most {MAX_VARIABLES} are taken"
    elif sum(len(text.encode(errors="replace")) for one in env.items() for text in one) > (
        MAX_ENV_BYTES
    ):
        why = f"names and values take more than {MAX_ENV_BYTES} bytes"
    try:
        for name, value in env.items():
            check_variable(name, value, _RESERVED)
    except ValueError as problem:
        why = str(problem)
    if why:
        raise Refused(400, "invalid_order", f"order: env: {why}")
