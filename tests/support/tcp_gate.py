"""A gate before a server: it lets connections through, refuses them, or takes them and never answers."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class TcpGate:
    """Forwards TCP connections to a server while it is open.

    Args:
        server: Address `http://HOST:PORT` of the server behind.
    """

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        assert parts.hostname and parts.port
        self._server = (parts.hostname, parts.port)
        self._listener: socket.socket | None = None
        self._held: list[socket.socket] = []
        self._ends: set[socket.socket] = set()
        self._silent = False
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Let connections through."""
        self._listen(silent=False)

    def refuse(self) -> None:
        """Refuse connections, and cut those that are open."""
        self._close()

    def go_silent(self) -> None:
        """Take connections and never answer."""
        self._listen(silent=True)

    def _listen(self, silent: bool) -> None:
        self._close()
        self._silent = silent
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self._port))
        self._listener.listen()
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _close(self) -> None:
        for end in [self._listener, *self._held, *self._ends]:
            if end is not None:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        self._listener, self._held, self._ends = None, [], set()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            if self._silent:
                self._held.append(client)
            else:
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        # A server that is not there, or an end that is cut, is the end of this connection alone.
        with (
            contextlib.suppress(OSError, ValueError),
            client,
            socket.create_connection(self._server) as server,
        ):
            self._ends |= {client, server}
            other = {client: server, server: client}
            while True:
                for end in select.select(list(other), [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    other[end].sendall(data)


@contextlib.contextmanager
def gate_before(server: str) -> Iterator[TcpGate]:
    """An open gate before a server for the length of a `with` block."""
    gate = TcpGate(server)
    gate.open()
    try:
        yield gate
    finally:
        gate.refuse()
