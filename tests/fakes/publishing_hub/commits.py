"""Commits and pull requests: the lines of a commit's body, carried out on a tree in one step."""

from __future__ import annotations

import base64
import json
import math
import re
from datetime import UTC, datetime
from typing import Any

import yaml
from repositories import Refused, Repository

LARGE_SUFFIXES = (".safetensors", ".bin", ".gguf")
LARGE_BYTES = 10 * 2**20


def upload_mode(path: str, size: int) -> str:
    return "lfs" if path.endswith(LARGE_SUFFIXES) or size > LARGE_BYTES else "regular"


def commit(
    repository: Repository, revision: str, body: bytes, author: str, as_pull_request: bool
) -> dict[str, Any]:
    """Carry out a commit; nothing is visible before all of it is.

    Raises:
        Refused: 412 if the branch is elsewhere than the commit's parent, 400 for a bad card or content.
    """
    lines = [json.loads(line) for line in body.splitlines()]
    header = lines[0]["value"]
    ref = revision if revision.startswith("refs/") else f"refs/heads/{revision}"
    refs = repository.refs("")
    if ref not in refs:
        raise Refused(404, f"no branch {revision}", "RevisionNotFound")
    parent = header.get("parentCommit") or refs[ref]
    if parent != refs[ref] and not as_pull_request:
        raise Refused(412, "A commit has happened since. Please refresh and try again.")
    tree = dict(repository.commit(parent)["tree"])
    for line in lines[1:]:
        apply(repository, tree, line["key"], line["value"])
    identity = repository.write_commit(parent, tree, header["summary"], header.get("description", ""), author)
    answer = {"success": True, "commitOid": identity, "commitUrl": f"/{repository.name}/commit/{identity}"}
    if not as_pull_request:
        repository.move(ref, identity)
        return answer
    number = open_pull_request(repository, header["summary"], identity, author)
    return {**answer, "pullRequestUrl": f"http://hub/{repository.name}/discussions/{number}"}


def apply(repository: Repository, tree: dict[str, Any], key: str, value: dict[str, Any]) -> None:
    path = value["path"]
    if key == "file":
        content = base64.b64decode(value["content"])
        if path == "README.md" and (problems := card_problems(content.decode())):
            raise Refused(400, "Invalid metadata in README.md: " + "; ".join(problems))
        tree[path] = repository.keep(content, lfs=False)
    elif key == "lfsFile":
        tree[path] = repository.kept(value["oid"])
    elif key == "deletedFile":
        if tree.pop(path, None) is None:
            raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
    else:
        raise Refused(400, f"unknown operation {key}")


def open_pull_request(repository: Repository, title: str, identity: str, author: str) -> int:
    state = repository.state()
    number = len(state["pull_requests"]) + 1
    state["pull_requests"].append(
        {
            "num": number,
            "title": title,
            "status": "open",
            "author": {"name": author},
            "createdAt": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "repo": {"name": repository.name, "type": "model"},
            "isPullRequest": True,
        }
    )
    state["refs"][f"refs/pr/{number}"] = [identity]
    repository.save(state)
    return number


def set_pull_request(repository: Repository, number: int, status: str) -> None:
    state = repository.state()
    state["pull_requests"][number - 1]["status"] = status
    repository.save(state)


def card_problems(text: str) -> list[str]:
    """What the hub refuses in a card's metadata."""
    match = re.match(r"^---\n(.*?)\n---", text, re.DOTALL)
    if not match:
        return []
    try:
        card = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        return [f"not YAML: {str(error).splitlines()[0]}"]
    if not isinstance(card, dict):
        return ["metadata must be an object"]
    texts = ("license", "library_name")
    problems = [f'"{key}" must be a string' for key in texts if not isinstance(card.get(key, ""), str)]
    problems += _nulls(card, "")
    for model in card.get("model-index") or []:
        if not isinstance(model.get("name"), str):
            problems.append('"model-index[0].name" is required')
    return problems


def _nulls(value: Any, place: str) -> list[str]:
    if isinstance(value, dict):
        return [problem for key, inner in value.items() for problem in _nulls(inner, f"{place}.{key}")]
    if isinstance(value, list):
        return [problem for n, inner in enumerate(value) for problem in _nulls(inner, f"{place}[{n}]")]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return [f'"{place.lstrip(".")}" must not be empty']
    return []
