"""A proxy before a tracking server that passes everything on and writes down what was asked: an independent count."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

__all__ = ["Counted", "counting"]


@dataclass
class Counted:
    """The address to use, and the end of each path that was asked for since `asked` was emptied."""

    uri: str = ""
    asked: list[str] = field(default_factory=list)


@contextmanager
def counting(port: int) -> Iterator[Counted]:
    """A proxy of the server at a port of this host."""
    counted = Counted()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            counted.asked.append(self.path.partition("?")[0].rpartition("/")[2])
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            upstream.request(self.command, self.path, body, dict(self.headers))
            answer = upstream.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type") or "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            upstream.close()

        def __getattr__(self, name: str) -> Callable[[], None]:
            if name.startswith("do_"):  # whatever the method is
                return self._pass_on
            raise AttributeError(name)

        def log_message(self, *_: object) -> None:
            """Nothing to the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        proxy.daemon_threads = True
        counted.uri = f"http://127.0.0.1:{proxy.server_address[1]}"
        Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield counted
        finally:
            proxy.shutdown()
