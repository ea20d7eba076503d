"""nginx and Caddy with the files of ``deploy/``, and curl as their caller."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.dev_program import ROOT, descendants
from tests.kit.programs import free_port, until

NAME = "ferryman.example.org"


def replaced(text: str, *changes: tuple[str, str]) -> str:
    """Each of them once; what the file does not hold any more fails here."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


class Proxy:
    """One of the two, before a server."""

    kind: str

    def __init__(self, program: str, folder: Path, server_port: int) -> None:
        self._program, self.folder = program, folder
        self.port, self.plain_port = free_port(), free_port()
        folder.mkdir()
        self.certificate, self._key = folder / "cert.pem", folder / "key.pem"
        names = ("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-days", "2")
        files = ("-keyout", str(self._key), "-out", str(self.certificate))
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, *files]
        subprocess.run(made, check=True, capture_output=True)
        self.command = self._configured(server_port)
        self.process: subprocess.Popen[bytes] | None = None

    def _configured(self, server_port: int) -> list[str]:
        """Write the configuration; the command that runs it in the foreground."""
        raise NotImplementedError

    def _variables(self) -> dict[str, str]:
        return dict(os.environ)

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self._variables()
            )
        try:
            until(self._listens, f"{self.kind} does not start", (self.folder / "log").read_text)
            yield self
        finally:
            self.process.terminate()
            self.process.wait(20)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def written(self) -> int:
        """Bytes that its processes have written to disks."""
        assert self.process is not None
        pids = (self.process.pid, *descendants(self.process.pid))
        files = [Path(f"/proc/{pid}/io").read_text() for pid in pids]
        return sum(
            int(found) for text in files for found in re.findall(r"write_bytes: (\d+)", text)
        )

    def connect(self) -> ssl.SSLSocket:
        """A connection of our own, for what curl does not do."""
        trust = ssl.create_default_context(cafile=str(self.certificate))
        line = socket.create_connection(("127.0.0.1", self.port), 60)
        return trust.wrap_socket(line, server_hostname=NAME)

    def words(self, path: str, *words: str) -> list[str]:
        """curl, with all that it needs to find it and to trust it."""
        there = ("--resolve", f"{NAME}:{self.port}:127.0.0.1", f"https://{NAME}:{self.port}{path}")
        return ["curl", "-sS", "--cacert", str(self.certificate), *words, *there]

    def curl(self, path: str, *words: str) -> tuple[int, bytes]:
        """Status and body; curl is what users type."""
        body = self.folder / f"body-{os.urandom(4).hex()}"
        command = self.words(path, "-o", str(body), "-w", "%{http_code}", *words)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        content = body.read_bytes() if body.exists() else b""
        body.unlink(missing_ok=True)
        return int(done.stdout), content

    def upload(self, *files: Path, path: str = "/upload") -> int:
        forms = [word for file in files for word in ("-F", f"file=@{file}")]
        status, body = self.curl(path, "-F", "user_id=1", "-F", "service=example", *forms)
        assert status == 201, body
        return int(json.loads(body)["id"])


class Nginx(Proxy):
    kind = "nginx"

    def _configured(self, server_port: int) -> list[str]:
        folder = self.folder
        site = (ROOT / "deploy/nginx/ferryman.conf").read_text()
        site = re.sub(r"(?m)^    # (location|\}|    )", r"    \1", site)  # the path, too
        site = replaced(
            site,
            ("127.0.0.1:5000", f"127.0.0.1:{server_port}"),
            ("listen 80;", f"listen 127.0.0.1:{self.plain_port};"),
            ("listen 443 ssl;", f"listen 127.0.0.1:{self.port} ssl;"),
            ("listen [::]:80;", ""),
            ("listen [::]:443 ssl;", ""),
            ("/etc/ssl/ferryman/fullchain.pem", str(self.certificate)),
            ("/etc/ssl/ferryman/privkey.pem", str(self._key)),
        )
        site = site.replace("/var/log/nginx/ferryman.log", str(folder / "access.log"))
        (folder / "site.conf").write_text(site)
        paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{name}_temp_path {folder}/{name};\n" for name in paths)
        (folder / "nginx.conf").write_text(
            f"daemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
            f"events {{}}\nhttp {{\n{temporary}"
            f"include {folder}/site.conf;\n}}\n"
        )
        return [self._program, "-p", str(folder), "-c", str(folder / "nginx.conf")]


class Caddy(Proxy):
    kind = "Caddy"

    def _configured(self, server_port: int) -> list[str]:
        text = (ROOT / "deploy/caddy/Caddyfile").read_text()
        text = re.sub(r"(?m)^\t# (redir|handle_path|\}|\t)", r"\t\1", text)  # the path, too
        certificate, key = "/etc/ssl/ferryman/fullchain.pem", "/etc/ssl/ferryman/privkey.pem"
        text = replaced(
            text,
            ("127.0.0.1:5000", f"127.0.0.1:{server_port}"),
            (f"# tls {certificate} {key}", f"tls {self.certificate} {self._key}"),
        )
        # Without the path, "import ferryman" is for whatever has no handler of its own.
        text = text.replace("\timport ferryman\n\n", "\thandle {\n\t\timport ferryman\n\t}\n\n", 1)
        ports = f"http_port {self.plain_port}\n\thttps_port {self.port}"
        file = self.folder / "Caddyfile"
        file.write_text(f"{{\n\tadmin off\n\t{ports}\n}}\n{text}")
        return [self._program, "run", "--adapter", "caddyfile", "--config", str(file)]

    def _variables(self) -> dict[str, str]:
        homes = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
        return {**os.environ, **dict.fromkeys(homes, str(self.folder))}
