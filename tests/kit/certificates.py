"""Real certificates, made by openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "30")


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


class Authority(Certificate):
    def issue(self, name: str, password: str = "") -> Certificate:
        """A certificate of 127.0.0.1, or of a caller."""
        made = Certificate(self.cert.with_name(f"{name}.pem"), self.cert.with_name(f"{name}.key"))
        locked = ("-passout", f"pass:{password}") if password else ("-nodes",)
        issuer = ("-CA", str(self.cert), "-CAkey", str(self.key))
        _openssl(name, made, *issuer, *locked, "-addext", "subjectAltName=IP:127.0.0.1")
        return made


def authority(folder: Path, name: str = "ca") -> Authority:
    made = Authority(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl(name, made, "-nodes", "-addext", "keyUsage=critical,keyCertSign")
    return made


def _openssl(name: str, made: Certificate, *more: str) -> None:
    to = ("-out", str(made.cert), "-keyout", str(made.key))
    command = ("openssl", "req", "-x509", "-subj", f"/CN={name}", *_NEW_KEY, *to, *more)
    subprocess.run(command, check=True, capture_output=True, timeout=30)
