"""A reverse proxy that shows a server below a path."""

import contextlib
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

PREFIX: Final = "/jobs/of-ours"


@contextlib.contextmanager
def proxied(url: str) -> Iterator[str]:
    """The server's address below PREFIX; a request for anything outside makes the test fail. What
    the server sends goes on at once, as nginx does without buffers.
    """
    upstream = urlsplit(url).netloc
    outside: list[str] = []

    class Forward(BaseHTTPRequestHandler):
        def _forward(self) -> None:
            path = self.path.removeprefix(PREFIX)
            if not self.path.startswith(f"{PREFIX}/"):
                outside.append(self.path)
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: text for name, text in self.headers.items() if name != "Connection"}
            connection = HTTPConnection(upstream, timeout=60)
            with contextlib.closing(connection), contextlib.suppress(ConnectionError):
                connection.request(self.command, path, body or None, headers)
                answer = connection.getresponse()
                self.send_response_only(answer.status, answer.reason)
                for name, text in answer.getheaders():
                    if name not in ("Connection", "Transfer-Encoding"):
                        self.send_header(name, text)
                self.end_headers()
                while part := answer.read1(1 << 16):
                    self.wfile.write(part)

        do_GET = do_HEAD = do_POST = _forward

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    finally:
        server.shutdown()
        server.server_close()
    assert [path for path in outside if path != "/favicon.ico"] == []
