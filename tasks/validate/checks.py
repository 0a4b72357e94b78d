"""All checks. Importing this module registers them."""

from __future__ import annotations

from tasks.validate import (
    driver_checks,
    fleet_checks,
    gpu_checks,
    gpu_health_checks,
    host_checks,
    network_checks,
    nvlink_checks,
    os_checks,
    plan_checks,
    software_checks,
    store_checks,
)
from tasks.validate.registry import CHECKS, Check, judge, worst

__all__ = [
    "CHECKS",
    "Check",
    "driver_checks",
    "fleet_checks",
    "gpu_checks",
    "gpu_health_checks",
    "host_checks",
    "judge",
    "network_checks",
    "nvlink_checks",
    "os_checks",
    "plan_checks",
    "software_checks",
    "store_checks",
    "worst",
]
