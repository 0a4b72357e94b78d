"""Contents: where large files are sent, and how files are read."""

from __future__ import annotations

import hashlib
import re

from exchange import Answer, Request, as_json
from repositories import Refused, Repository, write


def large_files(request: Request, name: str) -> Answer:
    repository = request.repository(name)
    base = f"http://{request.headers.get('Host')}/_lfs/{name}"
    rows = []
    for one in request.json()["objects"]:
        row = {"oid": one["oid"], "size": one["size"]}
        if not repository.blob(one["oid"]).is_file():
            row["actions"] = {
                "upload": {"href": f"{base}/upload/{one['oid']}"},
                "verify": {"href": f"{base}/verify/{one['oid']}"},
            }
        rows.append(row)
    return as_json({"transfer": "basic", "objects": rows})


def upload(request: Request, name: str, oid: str) -> Answer:
    if hashlib.sha256(request.body).hexdigest() != oid:
        raise Refused(400, "the content does not have this hash")
    write(Repository(request.root, name).blob(oid), request.body)
    return as_json({})


def verify(request: Request, name: str, oid: str) -> Answer:
    if not Repository(request.root, name).blob(oid).is_file():
        raise Refused(404, "no such content")
    return as_json({})


def file(request: Request, name: str, revision: str, path: str) -> Answer:
    repository = request.repository(name)
    sha = repository.resolve(revision)
    entry = repository.commit(sha)["tree"].get(path)
    if entry is None:
        raise Refused(404, "Entry not found", "EntryNotFound")
    etag = entry["sha256"] if entry["lfs"] else entry["oid"]
    headers = {"ETag": f'"{etag}"', "X-Repo-Commit": sha, "X-Linked-Size": str(entry["size"])}
    content = repository.blob(entry["sha256"]).read_bytes()
    if match := re.match(r"bytes=(\d+)-$", request.headers.get("Range") or ""):
        first = int(match[1])
        headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        return Answer(206, content[first:], headers)
    return Answer(200, content, headers)
