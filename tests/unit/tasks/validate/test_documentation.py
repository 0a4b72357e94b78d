"""docs/hardware.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from tasks.validate.checks import CHECKS
from tasks.validate.documentation import hardware_page

PAGE = Path(__file__).parents[4] / "docs" / "hardware.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == hardware_page(), (
        "run: python -m tasks.validate.documentation > docs/hardware.md"
    )


def test_every_check_is_on_it() -> None:
    assert all(f"`{id}`" in hardware_page() for id in CHECKS)
