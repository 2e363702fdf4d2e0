"""Proxy of a tracking server that forwards and logs all requests: an independent count."""

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

__all__ = ["Counted", "counting"]


@dataclass
class Counted:
    """Log of a counting proxy.

    Attributes:
        uri: The address of the proxy.
        asked: The last path component of each request since the list was last cleared.
    """

    uri: str = ""
    asked: list[str] = field(default_factory=list)


@contextmanager
def counting(port: int, last: Callable[[], bool] = lambda: False) -> Iterator[Counted]:
    """Run a proxy of the server at a port of this host.

    Args:
        port: The port of the server.
        last: After each request, whether the proxy must break all connections. The server has
            processed that request; the client gets no answer.
    """
    counted = Counted()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            counted.asked.append(self.path.partition("?")[0].rpartition("/")[2])
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            # The connection of the client may break before it receives the answer.
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as upstream:
                upstream.request(self.command, self.path, body, dict(self.headers))
                answer = upstream.getresponse()
                content = answer.read()
            if last():
                cut()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type") or "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def __getattr__(self, name: str) -> Callable[[], None]:
            if name.startswith("do_"):  # any HTTP method
                return self._pass_on
            raise AttributeError(name)

        def log_message(self, *_: object) -> None:
            """Print nothing to the terminal."""

    connections: list[socket.socket] = []

    class Proxy(ThreadingHTTPServer):
        daemon_threads = True

        def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:
            connections.append(request)
            super().process_request(request, client_address)

    with Proxy(("127.0.0.1", 0), Handler) as proxy:

        def cut() -> None:
            """Break every connection and accept no more."""
            proxy.shutdown()
            proxy.server_close()
            for each in connections:
                with suppress(OSError):  # many connections are closed already
                    each.shutdown(socket.SHUT_RDWR)

        counted.uri = f"http://127.0.0.1:{proxy.server_address[1]}"
        Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield counted
        finally:
            proxy.shutdown()
