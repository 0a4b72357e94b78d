"""What each address of the hub answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote

import accounts
from commits import card_problems, commit, set_pull_request, upload_mode
from exchange import Answer, Request, as_json
from files import file, large_files, upload, verify
from repositories import Refused, Repository

NAME = r"([\w.-]+/[\w.-]+)"


def whoami(request: Request) -> Answer:
    return as_json(accounts.who(request.account))


def create(request: Request) -> Answer:
    wanted, account = request.json(), request.account
    owner = wanted.get("organization") or accounts.who(account)["name"]
    name = f"{owner}/{wanted['name']}"
    if not accounts.may_write(account, name):
        raise Refused(403, f"you don't have the rights to create a model under the namespace {owner}")
    repository = Repository(request.root, name)
    url = f"http://{request.headers.get('Host')}/{name}"
    if repository.exists:
        raise Refused(409, "You already created this model repo", url=url)
    repository.create(wanted.get("visibility") == "private", str(account and account["name"]))
    return as_json({"url": url, "name": name})


def validate_card(request: Request) -> Answer:
    problems = card_problems(request.json()["content"])
    answer = {"errors": [{"message": problem} for problem in problems], "warnings": []}
    return as_json(answer, 400 if problems else 200)


def may_read(request: Request, name: str) -> Answer:
    request.repository(name)
    return as_json({})


def may_write(request: Request, name: str) -> Answer:
    request.repository(name, write=True)
    return as_json({})


def about(request: Request, name: str, revision: str = "main") -> Answer:
    repository = request.repository(name)
    sha = repository.resolve(revision)
    siblings = [{"rfilename": path} for path in repository.commit(sha)["tree"]]
    private = repository.state()["private"]
    return as_json({"id": name, "sha": sha, "private": private, "siblings": siblings, "tags": []})


def refs(request: Request, name: str) -> Answer:
    repository = request.repository(name)

    def listed(prefix: str) -> list[dict[str, str]]:
        found = repository.refs(prefix).items()
        return [{"name": n, "ref": prefix + n, "targetCommit": commit} for n, commit in found]

    answer = {"branches": listed("refs/heads/"), "tags": listed("refs/tags/"), "converts": []}
    return as_json({**answer, "pullRequests": listed("refs/pr/")})


def history(request: Request, name: str, revision: str) -> Answer:
    repository = request.repository(name)
    rows = [
        {
            **{key: one[key] for key in ("id", "title", "message", "date")},
            "authors": [{"user": one["author"]}],
        }
        for one in repository.history(repository.resolve(revision))
    ]
    return as_json(rows)


def _row(path: str, entry: dict[str, Any]) -> dict[str, Any]:
    row = {"type": "file", "path": path, "size": entry["size"], "oid": entry["oid"]}
    if entry["lfs"]:
        row["lfs"] = {"oid": entry["sha256"], "size": entry["size"], "pointerSize": 134}
    return row


def tree(request: Request, name: str, revision: str) -> Answer:
    repository = request.repository(name)
    files = repository.commit(repository.resolve(revision))["tree"]
    return as_json([_row(path, entry) for path, entry in files.items()])


def paths_info(request: Request, name: str, revision: str) -> Answer:
    repository = request.repository(name)
    files = repository.commit(repository.resolve(revision))["tree"]
    wanted = parse_qs(request.body.decode()).get("paths", [])
    return as_json([_row(path, files[path]) for path in wanted if path in files])


def preupload(request: Request, name: str, revision: str) -> Answer:
    pull_request = "create_pr" in request.query
    repository = request.repository(name, write=not pull_request)
    files = repository.commit(repository.resolve(revision))["tree"]
    rows = []
    for one in request.json()["files"]:
        entry = files.get(one["path"], {})
        mode = upload_mode(one["path"], one["size"])
        oid = entry.get("sha256" if mode == "lfs" else "oid")
        rows.append({"path": one["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return as_json({"files": rows})


def commits(request: Request, name: str, revision: str) -> Answer:
    pull_request = "create_pr" in request.query
    repository = request.repository(name, write=not pull_request)
    author = accounts.who(request.account)["name"]
    return as_json(commit(repository, revision, request.body, author, pull_request))


def branch(request: Request, name: str, new: str) -> Answer:
    repository = request.repository(name, write=True)
    if request.method == "DELETE":
        repository.remove(f"refs/heads/{new}")
        return as_json({})
    if new in repository.refs("refs/heads/"):
        raise Refused(409, "Reference already exists")
    repository.move(f"refs/heads/{new}", repository.resolve(request.json().get("startingPoint", "main")))
    return as_json({})


def tag(request: Request, name: str, revision: str) -> Answer:
    repository = request.repository(name, write=True)
    if request.method == "DELETE":
        repository.remove(f"refs/tags/{revision}")
        return as_json({})
    wanted = request.json()["tag"]
    if wanted in repository.refs("refs/tags/"):
        raise Refused(409, "Tag reference exists already")
    repository.move(f"refs/tags/{wanted}", repository.resolve(revision))
    return as_json({})


def discussions(request: Request, name: str) -> Answer:
    rows = request.repository(name).state()["pull_requests"]
    rows = rows[:-1] if request.stale else rows
    page = int(request.query.get("p", ["0"])[0])
    shown = list(reversed(rows))[page * 10 : page * 10 + 10]
    return as_json({"discussions": shown, "count": len(rows), "start": page * 10})


def discussion_status(request: Request, name: str, number: str) -> Answer:
    set_pull_request(request.repository(name, write=True), int(number), request.json()["status"])
    event = {
        "id": "1",
        "type": "status-change",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "author": {"name": "x"},
    }
    return as_json({"newStatus": {**event, "data": {"status": request.json()["status"]}}})


_API = rf"/api/models/{NAME}"
ROUTES: list[tuple[str, Callable[..., Answer]]] = [
    (r"GET /api/whoami-v2", whoami),
    (r"POST /api/repos/create", create),
    (r"POST /api/validate-yaml", validate_card),
    (rf"GET {_API}/auth-check", may_read),
    (rf"GET {_API}/auth-check/write", may_write),
    (rf"GET {_API}", about),
    (rf"GET {_API}/revision/([^/]+)", about),
    (rf"GET {_API}/refs", refs),
    (rf"GET {_API}/commits/([^/]+)", history),
    (rf"GET {_API}/tree/([^/]+)", tree),
    (rf"POST {_API}/paths-info/([^/]+)", paths_info),
    (rf"POST {_API}/preupload/([^/]+)", preupload),
    (rf"POST {_API}/commit/([^/]+)", commits),
    (rf"(?:POST|DELETE) {_API}/branch/([^/]+)", branch),
    (rf"(?:POST|DELETE) {_API}/tag/([^/]+)", tag),
    (rf"GET {_API}/discussions", discussions),
    (rf"POST {_API}/discussions/(\d+)/status", discussion_status),
    (rf"POST /{NAME}\.git/info/lfs/objects/batch", large_files),
    (rf"PUT /_lfs/{NAME}/upload/(\w+)", upload),
    (rf"POST /_lfs/{NAME}/verify/(\w+)", verify),
    (rf"(?:GET|HEAD) /{NAME}/resolve/([^/]+)/(.+)", file),
]


def answer(request: Request) -> Answer:
    """Answer a request, an error included."""
    try:
        for pattern, handler in ROUTES:
            if match := re.fullmatch(pattern, f"{request.method} {request.path}"):
                return handler(request, *(unquote(group) for group in match.groups()))
        raise Refused(404, f"no such address: {request.path}", "EntryNotFound")
    except Refused as refused:
        found = as_json({"error": refused.message, **refused.more}, refused.status)
        found.headers |= {"X-Error-Message": refused.message}
        found.headers |= {"X-Error-Code": refused.code} if refused.code else {}
        return found
