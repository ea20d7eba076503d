"""nginx and Caddy with the files of ``deploy/`` before a real server, and curl as their caller:
TLS, large uploads, long polls, events, a path of its own, early refusals.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from server.http.params import MAX_WAIT_S
from shared.units.durations import parse_duration
from tests.kit.dev_program import ROOT, descendants, ended
from tests.kit.installed import program
from tests.kit.programs import Pair, free_port, listens, other_program, until

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
        ended(*made)
        self.command = self._configured(server_port)

    def _configured(self, server_port: int) -> list[str]:
        """Write the configuration; the command that runs it in the foreground."""
        raise NotImplementedError

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        homes = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")  # in which Caddy keeps things
        env, log = os.environ | dict.fromkeys(homes, str(self.folder)), self.folder / "log"
        with other_program(self.command, log, lambda: listens(self.port), env=env) as self.process:
            yield self

    def written(self) -> int:
        """Bytes that its processes have written to disks."""
        pids = (self.process.pid, *descendants(self.process.pid))
        text = "".join(Path(f"/proc/{pid}/io").read_text() for pid in pids)
        return sum(map(int, re.findall(r"write_bytes: (\d+)", text)))

    def words(self, path: str, *words: str) -> list[str]:
        """curl, with all that it needs to find it and to trust it."""
        there = ("--resolve", f"{NAME}:{self.port}:127.0.0.1", f"https://{NAME}:{self.port}{path}")
        return ["curl", "-sS", "--cacert", str(self.certificate), *words, *there]

    def curl(self, path: str, *words: str) -> tuple[int, bytes]:
        """Status and body; curl is what users type."""
        body = self.folder / f"body-{os.urandom(4).hex()}"
        command = self.words(path, "-o", str(body), "-w", "%{http_code}", *words)
        done = ended(*command)
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
        head = f"daemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
        http = f"http {{\n{temporary}include {folder}/site.conf;\n}}\n"
        (folder / "nginx.conf").write_text(head + http)
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


SETTINGS = """
[server]
allowed_hosts = ["ferryman.example.org"]
trusted_proxies = ["127.0.0.1"]
max_upload = "6GB"
[services.example]
max_runs = 4
limits = { disk = "11GiB", results = "6GiB" }
"""
KINDS = {"nginx": Nginx, "caddy": Caddy}
PIECE = 1 << 20


@contextmanager
def started(top: Path, settings: str) -> Iterator[tuple[Pair, dict[str, Proxy]]]:
    pair = Pair(top, settings)
    with pair.running(), ExitStack() as stack:
        found: dict[str, Proxy] = {}
        for name, kind in KINDS.items():
            proxy = kind(program(name), top / name, pair.server.port)
            found[name] = stack.enter_context(proxy.running())
        yield pair, found


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """One for all tests here: none of them looks at what another did."""
    with started(tmp_path_factory.mktemp("proxied"), SETTINGS) as both:
        yield both


@pytest.fixture(params=KINDS)
def proxied(system, request):
    pair, proxies = system
    return proxies[request.param], pair


def _script(folder: Path, text: str) -> Path:
    path = folder / "run.sh"
    path.write_text(text)
    return path


def _large(path: Path, size: int) -> str:
    """A file of random bytes; its digest."""
    digest, block = hashlib.sha256(), os.urandom(PIECE)
    with path.open("wb") as file:
        for number in range(size // PIECE):
            piece = number.to_bytes(8, "big") + block[8:]
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _ended(proxy: Proxy, job_id: int) -> None:
    """One long poll after the other."""
    poll = (f"/api/v1/jobs/{job_id}/result?wait=100", "--head")  # 202: none yet
    until(lambda: proxy.curl(*poll)[0] == 200, "the job does not end", seconds=0.2)


def test_a_bundle_goes_up_and_its_result_comes_down(proxied, tmp_path):
    """A long poll is held meanwhile; the result comes in two halves."""
    proxy, _ = proxied
    size, data = 48 << 20, tmp_path / "data.bin"
    expected = _large(data, size)
    before = proxy.written()
    job_id = proxy.upload(_script(tmp_path, "sha256sum data.bin > sum.txt\n"), data)
    _ended(proxy, job_id)
    result = tmp_path / "result.zip"
    with result.open("wb") as file:
        for span in (f"0-{size // 2 - 1}", f"{size // 2}-"):
            status, part = proxy.curl(f"/api/v1/jobs/{job_id}/result", "-r", span)
            assert status == 206
            file.write(part)
    assert ended("unzip", "-p", result, "sum.txt").stdout.split()[0] == expected
    # Neither way was anything kept on the proxy's own disk: logs are all that it wrote.
    assert proxy.written() - before < PIECE


@pytest.mark.slow
def test_five_gigabytes_go_up(proxied, tmp_path):
    proxy, _ = proxied
    data = tmp_path / "data.bin"
    with data.open("wb") as file:
        file.truncate(5 * 10**9)
    before = proxy.written()
    text = "stat -c %s data.bin > size.txt && rm data.bin\n"
    job_id = proxy.upload(_script(tmp_path, text), data)
    _ended(proxy, job_id)
    status, size = proxy.curl(f"/api/v1/jobs/{job_id}/files/size.txt")
    assert (status, size.strip()) == (200, b"5000000000")
    assert proxy.written() - before < PIECE


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


def test_the_longest_poll_is_shorter_than_what_the_proxies_wait():
    nginx = (ROOT / "deploy/nginx/ferryman.conf").read_text()
    caddy = (ROOT / "deploy/caddy/Caddyfile").read_text()
    found = re.findall(r"proxy_read_timeout (\w+);", nginx)
    found += re.findall(r"response_header_timeout (\w+)", caddy)
    assert len(found) == 3
    assert all(parse_duration(one) > MAX_WAIT_S for one in found)


def test_lines_of_a_log_come_while_the_job_runs(proxied, tmp_path):
    """As server-sent events: one line, far less than any buffer, of a job that goes on."""
    proxy, pair = proxied
    job_id = proxy.upload(_script(tmp_path, "echo first line\nsleep 1000\n"))
    pair.until(job_id, "Running")
    path = f"/api/v1/jobs/{job_id}/logs?follow=1"
    command = proxy.words(path, "-N", "-H", "Accept: text/event-stream")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        assert any("first line" in line for line in curl.stdout)
        assert pair.status(job_id) == "Running"
        assert proxy.curl(f"/terminate/{job_id}", "-X", "POST")[0] == 200
        assert "event: end" in curl.stdout.read()


def test_the_server_knows_who_calls_and_no_log_of_the_proxy_has_a_link(proxied):
    """It believes no caller's own word."""
    proxy, pair = proxied
    number = os.urandom(4).hex()
    page = ("-H", f"Referer: https://{NAME}/jobs/2?link=secret-{number}")
    spoofed = ("-H", "X-Forwarded-For: 203.0.113.9", "--interface", "127.0.0.7")
    assert proxy.curl(f"/nothing-{number}?link=secret-{number}", *page, *spoofed)[0] == 403

    def logged() -> list[str]:
        return [line for line in pair.server.log.splitlines() if f"nothing-{number}" in line]

    until(logged, "the request is not logged")
    assert json.loads(logged()[0])["peer"] == "127.0.0.7"

    def logs() -> str:
        return "".join(file.read_text() for file in proxy.folder.glob("*log"))

    until(lambda: proxy.kind == "Caddy" or f"/nothing-{number} " in logs(), "nginx logs it later")
    assert f"secret-{number}" not in logs()


def test_plain_http_is_sent_on(proxied):
    proxy, _ = proxied
    there = f"{NAME}:{proxy.plain_port}"
    shown = ("-o", "/dev/null", "-w", "%{http_code} %{redirect_url}")
    here = ("--resolve", f"{there}:127.0.0.1")
    done = ended("curl", "-sS", *shown, *here, f"http://{there}/upload")
    assert done.stdout == f"308 https://{NAME}/upload"


def test_refusals_come_through_as_the_server_says_them(proxied, tmp_path):
    proxy, _ = proxied
    status, _ = proxy.curl("/api/v1/jobs", "-H", "Host: elsewhere.example.com")
    # Caddy knows its own name only, and answers others with nothing.
    assert status == (421 if proxy.kind == "nginx" else 200)
    form = ("-F", "user_id=1", "-F", "service=nothing", "-F", f"file=@{_script(tmp_path, 'true')}")
    status, body = proxy.curl("/upload", *form)
    assert (status, "Invalid service" in json.loads(body)["message"]) == (400, True)


@pytest.mark.slow  # the quick one: tests/journeys/dashboard/test_pages.py
def test_below_a_path_the_path_is_taken_away_and_put_into_addresses(tmp_path):
    settings = SETTINGS.replace("[server]", '[server]\npublic_url = "/ferry"')
    script = _script(tmp_path, "true\n")
    with started(tmp_path, settings) as (_, proxies):
        for proxy in proxies.values():
            job_id = proxy.upload(script, path="/ferry/upload")
            status, body = proxy.curl(f"/ferry/api/v1/jobs/{job_id}")
            assert status == 200
            link = json.loads(body)["links"]["self"]
            assert link.endswith(f"/ferry/api/v1/jobs/{job_id}")
            assert proxy.curl(link)[0] == 200
            _, page = proxy.curl("/ferry/", "-L", "-H", "Accept: text/html,application/xhtml+xml")
            assert status == 200
            style = re.search(rb'href="(/ferry/[^"]+\.css[^"]*)"', page)
            assert style is not None, page
            assert proxy.curl(style[1].decode())[0] == 200
            assert proxy.curl("/ferry")[0] in (301, 308)
            assert proxy.curl("/elsewhere/health")[0] == 404
