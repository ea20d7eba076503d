"""Settings for listening: the same keys in ``[server]`` and ``[agent]``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from shared.http.origins import normal_host
from shared.http.tls import TlsFiles
from shared.settings.base import File, Section, StringList, split_commas

MIN_TOKEN: Final = 16
"""Characters: fewer can be guessed."""
Secrets = Annotated[tuple[SecretStr, ...] | None, BeforeValidator(split_commas)]


class HttpSection(Section):
    """What both tables have."""

    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65_535)
    """0: a free one. Each program has a default of its own."""
    tokens: Secrets = None
    """A caller must send one of them; none set: only this machine may call."""
    tokens_file: File = None
    """One token a line."""
    metrics_tokens_file: File = None
    """One token a line, each good for reading ``/metrics``, and nothing else."""
    allowed_hosts: StringList = None
    """Names, beside its own, under which it is called; ``*.example.org``, or ``*`` for any."""
    tls_cert: File = None
    """Certificate in PEM format, with those between it and its CA; None: plain HTTP."""
    tls_key: File = None
    """None: the private key is in ``tls_cert``, too."""
    tls_client_ca: File = None
    """CAs of which every caller needs a certificate; None: callers need none."""
    _tokens: tuple[str, ...] | None = PrivateAttr(None)
    _metrics_tokens: tuple[str, ...] | None = PrivateAttr(None)

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            if "/" in name or normal_host(name.removeprefix("*.")) is None:
                raise ValueError(f"{name!r} is not the name of a host, such as jobs.example.org")
        return value

    @model_validator(mode="after")
    def _tls_and_tokens_are_good(self) -> HttpSection:
        self.tls()
        self.metrics_tokens()
        return self

    def tls(self) -> TlsFiles | None:
        """What connections are encrypted with; None: they are plain.

        Raises:
            ValueError: a file cannot be used.
        """
        if self.tls_cert is None:
            for key, path in (("tls_key", self.tls_key), ("tls_client_ca", self.tls_client_ca)):
                if path is not None:
                    raise ValueError(f"{key} is of use only with tls_cert")
            return None
        return TlsFiles(
            cert=self.tls_cert,
            key=self.tls_key,
            ca=self.tls_client_ca,
            called={"cert": "tls_cert", "key": "tls_key", "ca": "tls_client_ca"},
            listening=True,
        )

    def all_tokens(self) -> list[str]:
        """Those of ``tokens`` and ``tokens_file``, as the file was at the first call, which is the
        check of the settings.

        Raises:
            ValueError: see :meth:`_read_tokens`.
        """
        if self._tokens is None:
            self._tokens = tuple(self._read_tokens())
        return list(self._tokens)

    def metrics_tokens(self) -> list[str]:
        """Those of ``metrics_tokens_file``, as :meth:`all_tokens`.

        Raises:
            ValueError: see :func:`_tokens_of`; or one of them may do everything.
        """
        if self._metrics_tokens is None:
            file = self.metrics_tokens_file
            found = [] if file is None else _tokens_of("metrics_tokens_file", file)
            if found and set(found) & set(self.all_tokens()):
                raise ValueError(f"metrics_tokens_file {file}: one of them is in tokens, too")
            self._metrics_tokens = tuple(found)
        return list(self._metrics_tokens)

    def _read_tokens(self) -> list[str]:
        """Raises:
        ValueError: see :func:`_tokens_of`; a token is too short to keep anybody out, or cannot
            be sent in a header.
        """
        tokens = [token.get_secret_value() for token in self.tokens or ()]
        for number, token in enumerate(tokens, 1):
            _check(token, f"tokens: number {number}")
        if self.tokens_file is not None:
            tokens += _tokens_of("tokens_file", self.tokens_file)
        return tokens


def _tokens_of(key: str, file: Path) -> list[str]:
    """Raises ValueError: the file cannot be read or has none, or one is not good."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, ValueError) as problem:
        raise ValueError(f"{key} {file}: {problem}") from problem
    tokens = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            _check(line.strip(), f"{key} {file}: line {number}")
            tokens.append(line.strip())
    if not tokens:
        raise ValueError(f"{key} {file}: there is no token in it")
    return tokens


def _check(token: str, where: str) -> None:
    """The message says where the token is, never the token: it may be logged."""
    if len(token) < MIN_TOKEN:
        raise ValueError(
            f"{where} has {len(token)} characters, a token needs {MIN_TOKEN} at least; "
            'python3 -c "import secrets; print(secrets.token_urlsafe(32))" makes one'
        )
    if not all("!" <= character <= "~" for character in token):
        raise ValueError(f"{where} has a character other than visible ASCII")
