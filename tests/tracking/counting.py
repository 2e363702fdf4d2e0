"""Proxy of a tracking server that forwards and logs all requests, as an independent count."""

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

__all__ = ["RequestLog", "counting"]


@dataclass
class RequestLog:
    """Log of a counting proxy.

    Attributes:
        uri: Address of the proxy.
        requests: Last path component of each request since the list was last cleared.
    """

    uri: str = ""
    requests: list[str] = field(default_factory=list)


@contextmanager
def counting(port: int, is_last: Callable[[], bool] = lambda: False) -> Iterator[RequestLog]:
    """Run a proxy of the server at a port of this host.

    Args:
        port: Port of the server.
        is_last: Called after each request. If it returns True, the proxy breaks all connections:
            the server has processed the request, but the client receives no answer.
    """
    log = RequestLog()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            log.requests.append(self.path.partition("?")[0].rpartition("/")[2])
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            # The connection of the client may break before it receives the answer.
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as upstream:
                upstream.request(self.command, self.path, body, dict(self.headers))
                answer = upstream.getresponse()
                content = answer.read()
            if is_last():
                break_connections()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type") or "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def __getattr__(self, name: str) -> Callable[[], None]:
            if name.startswith("do_"):  # any HTTP method
                return self._forward
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

        def break_connections() -> None:
            """Break every connection and accept no further ones."""
            proxy.shutdown()
            proxy.server_close()
            for each in connections:
                with suppress(OSError):  # many connections are closed already
                    each.shutdown(socket.SHUT_RDWR)

        log.uri = f"http://127.0.0.1:{proxy.server_address[1]}"
        Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield log
        finally:
            proxy.shutdown()
