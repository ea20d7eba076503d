"""Why a connection to an agent failed, in plain words."""

from __future__ import annotations

import os

import aiohttp

from shared.http.tls import say_failure


def say_connection(problem: BaseException | str, ca_key: str) -> str:
    """What went wrong, and where.

    Args:
        ca_key: the setting that names the CAs to trust.
    """
    if isinstance(problem, aiohttp.ClientConnectorCertificateError):
        why = say_failure(problem.certificate_error)
        return f"{problem.host}:{problem.port}: {why} ({ca_key} names the CAs to trust)"
    if isinstance(problem, aiohttp.ClientConnectorSSLError):
        return f"{problem.host}:{problem.port}: no TLS: {say_failure(problem.os_error)}"
    if isinstance(problem, aiohttp.ClientConnectorError):
        error = problem.os_error  # asyncio says "Connect call failed" in the place of its text
        number = error.errno or 0
        text = os.strerror(number) if number > 0 else error.strerror or str(error)
        return f"{problem.host}:{problem.port}: {text}"
    if isinstance(problem, TimeoutError):
        return str(problem) or "no answer in time"
    return str(problem) or type(problem).__name__
