"""TLS by files: the certificate of a program that listens, and what a caller trusts.

The files are read at the start, and again when the program is asked to (SIGHUP). A connection keeps
what it began with.
"""

from __future__ import annotations

import ssl
from asyncio import sslproto
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# Bytes that asyncio keeps for each connection, and hands over at once. Its own 256 KiB would be
# 1 GiB for 4096 connections, and as much as that is parsed without a turn for others.
sslproto.SSLProtocol.max_size = 64 << 10

_MISMATCH: Final = "KEY_VALUES_MISMATCH"


class TlsFiles:
    """A context that is made of files in PEM format.

    Args:
        names: keys of the settings -> file: "cert" with our certificate and those between it and
            its CA, "key" with its private key (None: in the same file), "ca" with the CAs of
            peers. For messages they have the names of ``called``.
        listening: for the side that accepts connections; with "ca", each caller needs a
            certificate of one of these CAs. Otherwise for the side that connects; without "ca" it
            trusts the CAs of the system.

    Attributes:
        context: for connections that begin now.

    Raises:
        ValueError: a file cannot be used; the text says which and why.
    """

    def __init__(
        self,
        *,
        cert: Path | None,
        key: Path | None,
        ca: Path | None,
        called: Mapping[str, str],
        listening: bool,
    ) -> None:
        self._cert, self._key, self._ca = cert, key, ca
        self._called, self._listening = called, listening
        self.context = self._read()

    def reload(self) -> None:
        """Read the files again. Files that cannot be used change nothing."""
        try:
            self.context = self._read()
        except ValueError as problem:
            log.warning("tls.not_reloaded", why=str(problem))
        else:
            log.info("tls.reloaded", file=str(self._cert or self._ca))

    def _read(self) -> ssl.SSLContext:
        for name, path in (("cert", self._cert), ("key", self._key), ("ca", self._ca)):
            if path is not None:
                self._check_readable(name, path)
        if self._listening:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            if self._ca is not None:
                context.verify_mode = ssl.CERT_REQUIRED
                self._load_ca(context, self._ca)
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if self._ca is not None:
                self._load_ca(context, self._ca)
            else:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if self._cert is not None:
            self._load_chain(context, self._cert)
        return context

    def _check_readable(self, name: str, path: Path) -> None:
        try:
            path.read_bytes()
        except OSError as problem:
            raise ValueError(f"{self._called[name]} {path}: {problem.strerror}") from None

    def _load_ca(self, context: ssl.SSLContext, path: Path) -> None:
        try:
            context.load_verify_locations(path)
        except ssl.SSLError:
            raise ValueError(f"{self._called['ca']} {path}: no certificate in PEM format") from None

    def _load_chain(self, context: ssl.SSLContext, cert: Path) -> None:
        named = f"{self._called['cert']} {cert}"
        key = f"{self._called['key']} {self._key}" if self._key else "the key in the same file"

        def no_password() -> str:
            raise ValueError(f"{key} is encrypted: nobody is there to type its password")

        try:
            context.load_cert_chain(cert, self._key, no_password)
        except ssl.SSLError as problem:
            if problem.reason == _MISMATCH:
                raise ValueError(f"{key} is not the key of {named}") from None
            raise ValueError(f"{named}: not a certificate with {key}, in PEM format") from None


def say_failure(problem: Exception) -> str:
    """Why a connection failed, in words."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {problem.verify_message}"
    reason = problem.reason if isinstance(problem, ssl.SSLError) else None
    return (reason or str(problem)).replace("_", " ").lower()
