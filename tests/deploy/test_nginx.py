"""The nginx site before a real server: TLS, large uploads, long polls, ranges, early refusals."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.dev_program import ROOT
from tests.support.program_pair import Pair
from tests.support.programs import free_port, until

SITE = ROOT / "deploy/nginx/ferryman.conf"
NAME = "ferryman.example.org"
SETTINGS = """
[server]
allowed_hosts = ["ferryman.example.org"]
max_upload = "4GB"
[services.example]
max_runs = 4
limits = { disk = "3GiB", results = "3GiB" }
"""


class Proxy:
    """nginx with the site, and curl as its caller."""

    def __init__(self, nginx: str, folder: Path, server_port: int) -> None:
        self.folder, self.port, self.plain_port = folder, free_port(), free_port()
        self._nginx = nginx
        names = ("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}")
        files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                *names,
                *files,
            ],
            check=True,
            capture_output=True,
        )
        site = re.sub(r"(?m)^    # (location|\}|    )", r"    \1", SITE.read_text())
        for old, new in (
            ("127.0.0.1:5000", f"127.0.0.1:{server_port}"),
            ("listen 80;", f"listen 127.0.0.1:{self.plain_port};"),
            ("listen 443 ssl;", f"listen 127.0.0.1:{self.port} ssl;"),
            ("/etc/ssl/ferryman/fullchain.pem", str(folder / "cert.pem")),
            ("/etc/ssl/ferryman/privkey.pem", str(folder / "key.pem")),
        ):
            assert site.count(old) == 1, old
            site = site.replace(old, new)
        (folder / "site.conf").write_text(site)
        paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{name}_temp_path {folder}/{name};\n" for name in paths)
        (folder / "nginx.conf").write_text(
            f"daemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
            f"events {{}}\nhttp {{\naccess_log {folder}/access.log;\n{temporary}"
            f"include {folder}/site.conf;\n}}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        command = [self._nginx, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]
        subprocess.run([*command, "-t", "-q"], check=True)
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            until(self._listens, "nginx does not start")
            yield self
        finally:
            self.process.terminate()
            self.process.wait(20)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def curl(self, path: str, *words: str) -> tuple[int, bytes]:
        """Status and body; curl is what users type."""
        body = self.folder / f"body-{os.urandom(4).hex()}"
        there = ("--resolve", f"{NAME}:{self.port}:127.0.0.1", f"https://{NAME}:{self.port}{path}")
        trusted = ("--cacert", str(self.folder / "cert.pem"))
        done = subprocess.run(
            ["curl", "-sS", "-o", str(body), "-w", "%{http_code}", *trusted, *words, *there],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        content = body.read_bytes() if body.exists() else b""
        body.unlink(missing_ok=True)
        return int(done.stdout), content

    def upload(self, *files: Path) -> int:
        forms = [word for file in files for word in ("-F", f"file=@{file}")]
        status, body = self.curl("/upload", "-F", "user_id=1", "-F", "service=example", *forms)
        assert status == 201, body
        return int(json.loads(body)["id"])


@pytest.fixture(scope="module")
def proxied(tmp_path_factory, tool):
    """One for all tests here: none of them looks at what another did."""
    top = tmp_path_factory.mktemp("proxied")
    pair = Pair(top, SETTINGS)
    with pair.running():
        folder = top / "nginx"
        folder.mkdir()
        with Proxy(tool("nginx"), folder, pair.server.port).running() as proxy:
            yield proxy, pair


def _script(folder: Path, text: str) -> Path:
    path = folder / "run.sh"
    path.write_text(text)
    return path


def _large(path: Path, size: int) -> str:
    """A file of random bytes; its digest."""
    digest, block = hashlib.sha256(), os.urandom(1 << 20)
    with path.open("wb") as file:
        for number in range(size >> 20):
            piece = number.to_bytes(8, "big") + block[8:]
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _carried(proxied, tmp_path: Path, size: int) -> None:
    """Up through nginx, a long poll held there, and down again in two halves."""
    proxy, _ = proxied
    data = tmp_path / "data.bin"
    expected = _large(data, size)
    job_id = proxy.upload(_script(tmp_path, "sha256sum data.bin > sum.txt\n"), data)
    status, body = proxy.curl(f"/download/{job_id}?wait=100", "--head")
    assert status == 200, body
    half = size // 2
    parts = []
    for span in (f"0-{half - 1}", f"{half}-"):
        status, part = proxy.curl(f"/api/v1/jobs/{job_id}/result", "-r", span)
        assert status == 206
        parts.append(part)
    result = tmp_path / "result.zip"
    result.write_bytes(b"".join(parts))
    done = subprocess.run(["unzip", "-p", str(result), "sum.txt"], capture_output=True, check=True)
    assert done.stdout.split()[0].decode() == expected
    # Neither way was anything kept on nginx's own disk.
    kept = [p for p in proxy.folder.rglob("*") if p.is_file() and p.stat().st_size > 1 << 20]
    assert kept == []


def test_a_bundle_goes_up_and_its_result_comes_down(proxied, tmp_path):
    _carried(proxied, tmp_path, 48 << 20)


@pytest.mark.slow
def test_two_gigabytes_go_up_and_come_down(proxied, tmp_path):
    _carried(proxied, tmp_path, 2 << 30)


def test_a_long_poll_is_held_and_ends_with_the_job(proxied, tmp_path):
    proxy, pair = proxied
    job_id = proxy.upload(_script(tmp_path, "sleep 1000\n"))
    pair.until(job_id, "Running")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(proxy.curl, f"/download/{job_id}?wait=100")
        status, _ = proxy.curl(f"/terminate/{job_id}", "-X", "POST")
        assert status == 200
        status, body = waiting.result(60)
    assert (status, json.loads(body)["status"]) == (200, "Killed")


def test_plain_http_is_sent_on(proxied):
    proxy, _ = proxied
    there = f"{NAME}:{proxy.plain_port}"
    shown = ("-o", "/dev/null", "-w", "%{http_code} %{redirect_url}")
    done = subprocess.run(
        ["curl", "-sS", *shown, "--resolve", f"{there}:127.0.0.1", f"http://{there}/upload"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"308 https://{NAME}/upload"


def test_a_name_that_the_server_does_not_know_is_refused(proxied):
    proxy, _ = proxied
    status, _ = proxy.curl("/api/v1/jobs", "-H", "Host: elsewhere.example.com")
    assert status == 421


def test_a_refusal_comes_through_as_the_server_says_it(proxied, tmp_path):
    proxy, _ = proxied
    script = _script(tmp_path, "true\n")
    status, body = proxy.curl(
        "/upload", "-F", "user_id=1", "-F", "service=nothing", "-F", f"file=@{script}"
    )
    assert (status, re.search("Invalid service", json.loads(body)["message"]) is not None) == (
        400,
        True,
    )


def test_below_a_path_the_path_is_taken_away(proxied):
    proxy, _ = proxied
    assert proxy.curl("/ferry/health")[0] == 200
    assert proxy.curl("/ferry/api/v1/jobs")[0] == 200
    assert proxy.curl("/elsewhere/health")[0] == 404
