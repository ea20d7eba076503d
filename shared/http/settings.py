"""Settings for listening: the same keys in ``[server]`` and ``[agent]``."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from shared.http.origins import normal_host
from shared.http.tls import TlsFiles
from shared.settings.base import File, Section, StringList
from shared.settings.secrets import FileSecret, Secrets, check_length


class HttpSection(Section):
    """What both tables have."""

    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65_535)
    """0: a free one. Each program has a default of its own."""
    tokens: Secrets = None
    """A caller must send one of them; none set: only this machine may call."""
    metrics_tokens: Secrets = None
    """Each good for reading ``/metrics``, and nothing else."""
    allowed_hosts: StringList = None
    """Names, beside its own, under which it is called; ``*.example.org``, or ``*`` for any."""
    tls_cert: File = None
    """Certificate in PEM format, with those between it and its CA; None: plain HTTP."""
    tls_key: File = None
    """None: the private key is in ``tls_cert``, too."""
    tls_client_ca: File = None
    """CAs of which every caller needs a certificate; None: callers need none."""

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
        for key, tokens in (("tokens", self.tokens), ("metrics_tokens", self.metrics_tokens)):
            for number, token in enumerate(tokens or (), 1):
                place = f"number {number}"
                if isinstance(token, FileSecret):
                    place = f"file {token.file}: line {token.line}"
                _check(token.get_secret_value(), f"{key}: {place}")
        if set(self.all_metrics_tokens()) & set(self.all_tokens()):
            raise ValueError("metrics_tokens: one of them is in tokens, too")
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
        """Those of callers that may do everything."""
        return [token.get_secret_value() for token in self.tokens or ()]

    @property
    def needs_token(self) -> bool:
        """Whether a request without a token is refused."""
        return bool(self.all_tokens())

    def all_metrics_tokens(self) -> list[str]:
        """Those of callers that may read metrics."""
        return [token.get_secret_value() for token in self.metrics_tokens or ()]


def _check(token: str, where: str) -> None:
    """Raises ValueError: it can be guessed, or cannot be sent in a header."""
    check_length(token, where)
    if not all("!" <= character <= "~" for character in token):
        raise ValueError(f"{where} has a character other than visible ASCII")
