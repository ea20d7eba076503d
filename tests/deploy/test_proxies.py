"""The sites of nginx and Caddy before a real server: TLS, large uploads, long polls, events, a path
of its own, early refusals."""

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
from tests.deploy.proxies import NAME, Caddy, Nginx, Proxy
from tests.kit.dev_program import ROOT
from tests.kit.program_pair import Pair
from tests.kit.programs import until

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
def started(top: Path, settings: str, tool) -> Iterator[tuple[Pair, dict[str, Proxy]]]:
    pair = Pair(top, settings)
    with pair.running(), ExitStack() as stack:
        made = {
            name: kind(tool(name), top / name, pair.server.port) for name, kind in KINDS.items()
        }
        yield pair, {name: stack.enter_context(one.running()) for name, one in made.items()}


@pytest.fixture(scope="module")
def system(tmp_path_factory, tool):
    """One for all tests here: none of them looks at what another did."""
    with started(tmp_path_factory.mktemp("proxied"), SETTINGS, tool) as both:
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
    poll = (f"/download/{job_id}?wait=100", "--head")
    until(lambda: proxy.curl(*poll)[0] == 200, "the job does not end", seconds=0.2)


def _carried(proxied, tmp_path: Path, size: int) -> None:
    """Up through the proxy, a long poll held there, and down again in two halves."""
    proxy, _ = proxied
    data = tmp_path / "data.bin"
    expected = _large(data, size)
    before = proxy.written()
    job_id = proxy.upload(_script(tmp_path, "sha256sum data.bin > sum.txt\n"), data)
    _ended(proxy, job_id)
    half = size // 2
    result = tmp_path / "result.zip"
    with result.open("wb") as file:
        for span in (f"0-{half - 1}", f"{half}-"):
            status, part = proxy.curl(f"/api/v1/jobs/{job_id}/result", "-r", span)
            assert status == 206
            file.write(part)
    done = subprocess.run(["unzip", "-p", str(result), "sum.txt"], capture_output=True, check=True)
    assert done.stdout.split()[0].decode() == expected
    # Neither way was anything kept on the proxy's own disk: logs are all that it wrote.
    assert proxy.written() - before < PIECE


def test_a_bundle_goes_up_and_its_result_comes_down(proxied, tmp_path):
    _carried(proxied, tmp_path, 48 << 20)


@pytest.mark.slow
def test_two_gigabytes_go_up_and_come_down(proxied, tmp_path):
    _carried(proxied, tmp_path, 2 << 30)


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


@pytest.mark.slow  # the quick one: test_a_bundle_goes_up_and_its_result_comes_down
def test_an_upload_reaches_the_server_while_it_is_being_sent(proxied):
    proxy, pair = proxied
    field = b'Content-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    parts = b"".join(
        b"--b\r\n" + field % pair for pair in ((b"user_id", b"1"), (b"service", b"example"))
    )
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n'
    script = head % b"run.sh" + b"true\r\n"
    start, data, end = parts + script + head % b"data.bin", os.urandom(2 * PIECE), b"\r\n--b--\r\n"
    length = len(start) + 2 * len(data) + len(end)

    def kept() -> int:
        files = [path for path in pair.server.data.rglob("*") if "sqlite" not in path.name]
        return sum(path.stat().st_size for path in files if path.is_file())

    with proxy.connect() as line:
        before = kept()
        line.sendall(
            f"POST /upload HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: {length}\r\n"
            "Content-Type: multipart/form-data; boundary=b\r\nConnection: close\r\n\r\n".encode()
        )
        line.sendall(start + data)
        until(lambda: kept() - before >= PIECE, "nothing of the first half is at the server")
        line.sendall(data + end)
        answer = b"".join(iter(lambda: line.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 201 "), answer


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
    logs = "".join(file.read_text() for file in proxy.folder.glob("*log"))
    assert f"secret-{number}" not in logs
    assert proxy.kind == "Caddy" or f"/nothing-{number} " in logs


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


def test_refusals_come_through_as_the_server_says_them(proxied, tmp_path):
    proxy, _ = proxied
    status, _ = proxy.curl("/api/v1/jobs", "-H", "Host: elsewhere.example.com")
    # Caddy knows its own name only, and answers others with nothing.
    assert status == (421 if proxy.kind == "nginx" else 200)
    form = ("-F", "user_id=1", "-F", "service=nothing", "-F", f"file=@{_script(tmp_path, 'true')}")
    status, body = proxy.curl("/upload", *form)
    assert (status, "Invalid service" in json.loads(body)["message"]) == (400, True)


@pytest.mark.slow  # the quick one: tests/journeys/dashboard/test_pages.py
def test_below_a_path_the_path_is_taken_away_and_put_into_addresses(tmp_path, tool):
    settings = SETTINGS.replace("[server]", '[server]\npublic_url = "/ferry"')
    script = _script(tmp_path, "true\n")
    with started(tmp_path, settings, tool) as (_, proxies):
        for proxy in proxies.values():
            job_id = proxy.upload(script, path="/ferry/upload")
            status, body = proxy.curl(f"/ferry/api/v1/jobs/{job_id}")
            assert status == 200
            link = json.loads(body)["links"]["self"]
            assert link.endswith(f"/ferry/api/v1/jobs/{job_id}")
            assert proxy.curl(link)[0] == 200
            status, page = proxy.curl(
                "/ferry/", "-L", "-H", "Accept: text/html,application/xhtml+xml"
            )
            assert status == 200
            style = re.search(rb'href="(/ferry/[^"]+\.css[^"]*)"', page)
            assert style is not None, page
            assert proxy.curl(style[1].decode())[0] == 200
            assert proxy.curl("/ferry")[0] in (301, 308)
            assert proxy.curl("/elsewhere/health")[0] == 404
