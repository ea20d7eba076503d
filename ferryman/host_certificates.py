"""The host's certificates are read when somebody is spoken to by TLS, not by each program."""

from __future__ import annotations

import ssl
from typing import Any, cast


class _ReadWhenUsed(ssl.SSLContext):
    """Trusts what the host trusts, from the first connection on."""

    _read = False

    def wrap_bio(self, *args: Any, **given: Any) -> ssl.SSLObject:
        if not self._read:
            self.load_default_certs()
            self._read = True
        return super().wrap_bio(*args, **given)


def import_aiohttp() -> None:
    """Import it before anything else does: it makes two contexts, each of which reads all that the
    host trusts (20 ms), though most are spoken to without TLS, or by a context of ours.

    Not where there are threads: contexts that they make meanwhile would trust nobody.
    """
    create, context_class = ssl.create_default_context, cast("Any", ssl.SSLContext)
    load = context_class.load_default_certs

    def context() -> ssl.SSLContext:
        made = create()
        made.__class__ = _ReadWhenUsed
        return made

    def nothing(*_: object) -> None:
        pass

    cast("Any", ssl).create_default_context = context
    context_class.load_default_certs = context_class.set_default_verify_paths = nothing
    try:
        import aiohttp  # noqa: F401
    finally:
        cast("Any", ssl).create_default_context = create
        context_class.load_default_certs = load
        del context_class.set_default_verify_paths  # it was, and is, that of the class above
