"""A small Hugging Face hub: `python hub.py --port P --folder F`; serves what `snapshot_download` asks for.

Repositories are folders below F: `models/OWNER/NAME` and `datasets/OWNER/NAME`. Each has one commit, whose id
is in its file `.commit`; `main` is a branch. Without a `.commit` a repository asks for an agreement first.
Every path that was asked for is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_INFO = re.compile(r"^/api/(models|datasets)/([^/]+/[^/]+)(?:/revision/([^/]+))?$")
_TREE = re.compile(r"^/api/(models|datasets)/([^/]+/[^/]+)/tree/([^/]+)/?$")
_FILE = re.compile(r"^/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")


class Handler(BaseHTTPRequestHandler):
    root: Path
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        print(format % args, flush=True)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := _INFO.match(path):
            self.about(match[1], match[2], match[3] or "main")
        elif match := _TREE.match(path):
            self.tree(match[1], match[2], match[3])
        elif match := _FILE.match(path):
            self.file("datasets" if match[1] else "models", match[2], match[3], match[4])
        else:
            self.refuse(404, "EntryNotFound")

    def repository(self, kind: str, name: str, revision: str) -> tuple[Path, str] | None:
        """Folder and commit; None once a refusal was sent."""
        folder = self.root / kind / name
        if not folder.is_dir():
            self.refuse(404, "RepoNotFound")
            return None
        if not (folder / ".commit").is_file():
            self.refuse(403, "GatedRepo")
            return None
        commit = (folder / ".commit").read_text().strip()
        if revision not in ("main", commit):
            self.refuse(404, "RevisionNotFound")
            return None
        return folder, commit

    def files(self, folder: Path) -> list[Path]:
        return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".commit"]

    def about(self, kind: str, name: str, revision: str) -> None:
        if found := self.repository(kind, name, revision):
            folder, commit = found
            names = [{"rfilename": path.relative_to(folder).as_posix()} for path in self.files(folder)]
            self.send_json({"id": name, "sha": commit, "siblings": names, "private": False, "tags": []})

    def tree(self, kind: str, name: str, revision: str) -> None:
        if found := self.repository(kind, name, revision):
            rows = [
                {
                    "type": "file",
                    "path": path.relative_to(found[0]).as_posix(),
                    "size": path.stat().st_size,
                    "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
                }
                for path in self.files(found[0])
            ]
            self.send_json(rows)

    def file(self, kind: str, name: str, revision: str, path: str) -> None:
        found = self.repository(kind, name, revision)
        if not found:
            return
        file = found[0] / path
        if not file.is_file():
            self.refuse(404, "EntryNotFound")
            return
        content = file.read_bytes()
        self.send(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": found[1]})

    def refuse(self, status: int, code: str) -> None:
        self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def send_json(self, value: Any) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


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
