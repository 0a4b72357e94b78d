"""All checks. Importing this module registers them."""

from __future__ import annotations

from tasks.validate import host_checks, service_checks, software_checks
from tasks.validate.registry import CHECKS, Check, Verdict, run_checks

__all__ = ["CHECKS", "Check", "Verdict", "host_checks", "run_checks", "service_checks", "software_checks"]
