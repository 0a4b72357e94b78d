"""Checks of operating system, kernel and page size."""

from __future__ import annotations

from tasks.validate.facts import NodeFacts
from tasks.validate.registry import node_check
from tasks.validate.requirements import Requirements
from tasks.validate.verdicts import Fault, Verdict, as_version, at_least, from_faults, skip, unobserved


@node_check(
    "os.release",
    rule="machine type and distribution are those of `hardware.os`; another point release is a warning",
    remedy="install the distribution that the profile names, or accept this one in `hardware.os`",
    severity="fail, warn",
)
def release(facts: NodeFacts, need: Requirements) -> Verdict:
    wanted, found = need.hardware.os, facts.os
    pairs = (
        ("machine type", wanted.machine, found.machine),
        ("distribution", wanted.id, found.id),
        ("version", wanted.version_id, found.version_id),
    )
    asked = [(name, want, have) for name, want, have in pairs if want is not None]
    if not asked and wanted.point_release is None:
        return skip("the profile names no operating system", observed=found.version or "not asked")
    required = " ".join(str(want) for _, want, _ in asked)
    faults = [
        Fault("fail", f"{name} is {have or 'not observed'}, wanted {want}")
        for name, want, have in asked
        if want != have
    ]
    point = wanted.point_release
    if not faults and point and not (found.version or "").startswith(point):
        faults.append(Fault("warn", f"tested with {point}, this is {found.version or 'not observed'}"))
    observed = " ".join(str(have or "not observed") for _, _, have in asked)
    return from_faults(faults, observed or found.version or "not observed", required or str(point), "os")


@node_check(
    "os.kernel",
    rule="the kernel is not older than `hardware.os.kernel_min` and has the flavour `kernel_flavour`",
    remedy="boot the tested kernel, or accept this one: the run is not known to work with it",
    severity="warn",
)
def kernel(facts: NodeFacts, need: Requirements) -> Verdict:
    wanted, found = need.hardware.os, facts.os.kernel_release
    if wanted.kernel_min is None and wanted.kernel_flavour is None:
        return skip("the profile names no kernel", observed=found or "not asked")
    required = f"{wanted.kernel_min or 'any version'} or newer, {wanted.kernel_flavour or 'any flavour'}"
    version = as_version(found)
    if found is None or version is None:
        return unobserved("the kernel release", required, facts, "os.kernel_release", "warn")
    faults = []
    if not at_least(version, wanted.kernel_min):
        faults.append(Fault("warn", f"older than {wanted.kernel_min}"))
    if wanted.kernel_flavour and not found.endswith(wanted.kernel_flavour):
        faults.append(Fault("warn", f"not of flavour {wanted.kernel_flavour}"))
    return from_faults(faults, found, required, "os.kernel_release")


@node_check(
    "os.page_size",
    rule="the kernel's page size is one of `hardware.page_sizes_bytes`; if it is not the tested one "
    "(`hardware.os.page_size_bytes`), that is a warning",
    remedy="boot a kernel with an accepted page size (`-64k` flavours have 65536), or accept this one in "
    "`hardware.page_sizes_bytes`; programs built for smaller pages can crash on larger ones",
    severity="fail, warn",
)
def page_size(facts: NodeFacts, need: Requirements) -> Verdict:
    size, accepted = facts.os.page_size_bytes, need.hardware.page_sizes_bytes
    tested = need.hardware.os.page_size_bytes
    required = f"{tested} bytes" if tested else " or ".join(map(str, accepted)) + " bytes"
    if size is None:
        return unobserved("the page size", required, facts, "os.page_size_bytes")
    faults = []
    if size not in accepted:
        faults.append(Fault("fail", "page size is not accepted"))
    elif tested and size != tested:
        faults.append(Fault("warn", f"the run was tested with pages of {tested} bytes"))
    return from_faults(faults, f"{size} bytes", required, "os.page_size_bytes")
