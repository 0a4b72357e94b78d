"""A Hugging Face hub of one folder: `python tests/fakes/publishing_hub --port P --folder F`.

It answers what `huggingface_hub` 2.4 asks for while a model is published, read and rolled back, and keeps
everything on disk. `POST /_control/faults` sets what goes wrong (see `faults.py`); `GET /_control/requests`
tells what was asked for since then.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from exchange import Answer, Request
from faults import Faults, Rule
from routes import answer


class Handler(BaseHTTPRequestHandler):
    root: Path
    faults = Faults()
    lock = threading.Lock()
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        if parts.path.startswith("/_control/"):
            self.control(parts.path)
            return
        rule = self.faults.take(f"{self.command} {unquote(parts.path)}")
        body = self.body(rule)
        if body is None:
            return
        request = Request(
            self.root,
            self.command,
            parts.path,
            parse_qs(parts.query, keep_blank_values=True),
            self.headers,
            body,
        )
        if rule is None:
            self.send(self.carried_out(request), len(body))
        else:
            self.go_wrong(rule, request)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

    def carried_out(self, request: Request) -> Answer:
        with self.lock:
            return answer(request)

    def body(self, rule: Rule | None) -> bytes | None:
        """The whole body; None if the connection was cut while it came in."""
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            pieces = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        length = int(self.headers.get("Content-Length") or 0)
        if rule is not None and rule.do == "cut" and rule.when == "middle":
            self.rfile.read(length // 2)
            self.cut(length // 2)
            return None
        return self.rfile.read(length)

    def go_wrong(self, rule: Rule, request: Request) -> None:
        size = len(request.body)
        if rule.do == "slow":
            time.sleep(rule.seconds)
        if rule.do == "stale":
            request.stale = True
        if rule.do in ("slow", "stale"):
            self.send(self.carried_out(request), size)
            return
        done = self.carried_out(request) if rule.when == "after" else None
        if rule.do == "status":
            self.send(Answer(rule.status, b'{"error": "made to fail"}', dict(rule.headers)), size)
        elif rule.do == "kill":
            os.kill(rule.pid, signal.SIGKILL)
            self.cut(size)
        else:
            self.cut(size)
            if rule.when == "late":
                time.sleep(rule.seconds)
                done = self.carried_out(request)
        del done

    def cut(self, size: int) -> None:
        self.faults.note(self.command, unquote(self.path), size, 0)
        self.close_connection = True
        self.connection.shutdown(2)

    def control(self, path: str) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/_control/faults":
            self.faults.set(json.loads(content))
        self.send(Answer(200, json.dumps(self.faults.requests).encode(), {}), -1)

    def send(self, found: Answer, size: int) -> None:
        if size >= 0:
            self.faults.note(self.command, unquote(self.path), size, found.status)
        try:
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(found.content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(found.content)
        except OSError:
            self.close_connection = True  # who asked is gone


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    Handler.root = options.folder
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
