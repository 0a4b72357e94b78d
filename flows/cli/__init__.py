"""Command line `retrain-dspark`: one file for each command."""

from __future__ import annotations

from flows.cli.main import main

__all__ = ["main"]
