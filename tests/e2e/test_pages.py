"""Pages as a user sees them, in a real browser: `make verify PART=ui`."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import framed, program, rendered
from observing import final_state, until
from prefect_pages import Pages, served, working

from tasks.run_folder import RunFolder
from tasks.stages import STAGE_NAMES

pytestmark = [pytest.mark.verify("ui"), pytest.mark.timeout(2700)]
Record = Callable[[str, object], None]
DEMO_ENV = "RETRAIN_DSPARK_DEMO_RUNS"
NAME = "retrain-dspark"
DESKTOP, PHONE = (1200, 5200), (390, 9600)
SETTLE_MS = 15_000
DOMAINS = 9


def text_of(document: str) -> str:
    """What a reader can see, in one line; collapsed parts count, styles and scripts do not."""
    bare = re.sub(r"<(style|script)\b.*?</\1>", " ", document, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


@pytest.fixture(scope="module")
def chromium() -> str:
    return program()


@pytest.fixture(scope="module")
def finished(request: pytest.FixtureRequest, chromium: str) -> RunFolder:
    """The newest promoted run of the folder that the environment names; else the full run."""
    given = os.environ.get(DEMO_ENV)
    for path in sorted(Path(given).glob("*/summary.json") if given else (), reverse=True):
        if (json.loads(path.read_text(encoding="utf-8"))["decision"] or {}).get("promote"):
            return RunFolder(path.parent)
    run: RunFolder = request.getfixturevalue("demo_run")
    return run


def expected_words(run: RunFolder) -> list[str]:
    """What the report has to say of this run."""
    summary = json.loads((run.path / "summary.json").read_text(encoding="utf-8"))
    evaluation, decision = summary["evaluation"], summary["decision"]
    assert len(evaluation["tau"]) == DOMAINS
    return [
        f"{evaluation['tau_macro']:.2f}",
        "Promoted" if decision["promote"] else "Held",
        *decision["reasons"],
        *evaluation["tau"],
        *(f"{tau['value']:.2f}" for tau in evaluation["tau"].values()),
        *STAGE_NAMES,
        evaluation["lossless"],
        " ".join(summary["publication"]["serve_command"].split()),
        summary["run_id"],
    ]


def test_report_on_a_desktop(finished: RunFolder, tmp_path: Path, record_property: Record) -> None:
    """report.html at 1200 pixels says what the run found and asks nobody for anything"""
    page = finished.path / "report.html"
    document = rendered(page.as_uri(), *DESKTOP, tmp_path / "report-1200.png")
    text = text_of(document)
    assert [word for word in expected_words(finished) if word not in text] == []
    linked = re.findall(r"""\b(?:src|href|srcset|action|data)\s*=\s*["']([^"']*)""", document)
    assert [link for link in linked if not link.startswith(("#", "data:"))] == []
    loaded = re.findall(r"url\(\s*[\"']?([^\"')]*)", document)
    assert [link for link in loaded if not link.startswith(("#", "data:"))] == []
    assert "@import" not in document and "<script" not in document
    record_property("report_kib", page.stat().st_size // 1024)


@pytest.mark.parametrize(("width", "height"), [DESKTOP, PHONE], ids=["1200", "390"])
def test_report_needs_no_scrolling_sideways(
    finished: RunFolder, tmp_path: Path, width: int, height: int
) -> None:
    """report.html fits the width of the screen"""
    page = (finished.path / "report.html").read_text(encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(framed(page, width, height), encoding="utf-8")
    document = rendered(frame.as_uri(), width, height, tmp_path / f"report-{width}.png")
    found = re.search(r'data-width="(\d+)"', document)
    assert found is not None and int(found.group(1)) <= width


@pytest.fixture(scope="module")
def shown(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pages, str]]:
    """`retrain-dspark ui` after one deployed run of small stages; the run's id in Prefect."""
    with served(tmp_path_factory.mktemp("checkout"), small_stages=True) as pages, working(pages):
        done = pages.call("prefect", "deployment", "run", NAME, "-p", "profile=laptop")
        match = re.search(r"UUID: ([0-9a-f-]{36})", done.stdout)
        assert done.returncode == 0 and match is not None, done.stdout
        state = until(lambda: final_state(pages.api, match.group(1)), 300, "the end of the flow run")
        assert state[0] == "Completed", state
        yield pages, match.group(1)


def of_prefect(pages: Pages, path: str) -> dict[str, Any]:
    answer = httpx.get(f"{pages.api}/{path}", timeout=60)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def look(pages: Pages, path: str, picture: Path) -> str:
    """Text of one of Prefect's pages after it has settled."""
    server = pages.api.removesuffix("/api")
    return text_of(rendered(f"{server}/{path}", 1300, 2400, picture, SETTLE_MS))


def test_prefect_shows_the_deployment(shown: tuple[Pages, str], tmp_path: Path) -> None:
    """Prefect's page of the deployment names it and describes its parameters"""
    pages, _ = shown
    deployment = of_prefect(pages, f"deployments/name/{NAME}/{NAME}")
    text = look(pages, f"deployments/deployment/{deployment['id']}", tmp_path / "deployment.png")
    assert NAME in text and deployment["work_pool_name"] in text


def test_prefect_form_describes_every_parameter(shown: tuple[Pages, str], tmp_path: Path) -> None:
    """The form of a new run shows each parameter with its description"""
    pages, _ = shown
    deployment = of_prefect(pages, f"deployments/name/{NAME}/{NAME}")
    text = look(pages, f"deployments/deployment/{deployment['id']}/run", tmp_path / "form.png")
    properties = deployment["parameter_openapi_schema"]["properties"]
    assert {"profile", "overrides"} <= set(properties)
    for name, field in properties.items():
        assert field.get("title", name) in text, name
        first = " ".join(field["description"].split()).split(". ")[0]
        assert first in text, (name, first)


def test_prefect_shows_the_flow_run(shown: tuple[Pages, str], tmp_path: Path) -> None:
    """Prefect's page of the flow run names it, its state and its stages"""
    pages, flow_run_id = shown
    name = of_prefect(pages, f"flow_runs/{flow_run_id}")["name"]
    text = look(pages, f"runs/flow-run/{flow_run_id}", tmp_path / "flow-run.png")
    assert name in text and "Completed" in text
    assert [stage for stage in STAGE_NAMES if stage not in text] == []


def test_mlflow_shows_the_run(shown: tuple[Pages, str], tmp_path: Path) -> None:
    """MLflow's page of the experiment lists the run"""
    pages, _ = shown
    [run] = [path.parent.name for path in pages.root.glob("*/run.json")]
    url = f"{pages.mlflow}/api/2.0/mlflow/experiments/search?max_results=20"
    experiments = httpx.get(url, timeout=60).raise_for_status().json()["experiments"]
    [experiment] = [found for found in experiments if found["name"] != "Default"]
    address = f"{pages.mlflow}/#/experiments/{experiment['experiment_id']}/runs"
    text = text_of(rendered(address, 1300, 1200, tmp_path / "mlflow.png", SETTLE_MS))
    assert experiment["name"] in text and run in text
