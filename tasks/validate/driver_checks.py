"""Checks of the NVIDIA driver and of CUDA: what the driver offers and what is installed are two things."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tasks.validate.facts import NodeFacts
from tasks.validate.registry import node_check
from tasks.validate.requirements import Requirements
from tasks.validate.verdicts import Fault, Verdict, as_version, at_least, from_faults, skip, unobserved

PREVIEW_TOOLKITS = ((13, 4, 0),)
"""Toolkits that were developer previews; figures measured with one may not be published."""
PROBES = ("nvml", "nvidia-smi", "smi")
"""Beginnings of the paths under which a probe of the driver leaves its error."""
FIRST_TOOLKIT = {
    "sm_90": "11.8",
    "sm_100": "12.8",
    "sm_103": "12.9",
    "sm_120": "12.8",
    "sm_107": "13.4",
}
"""Architecture -> first toolkit that compiles for it."""
RUN_DRIVER = {(10, 7): "615"}
"""Compute capability -> first driver branch that runs it, where that is newer than the CUDA API needs."""


Channel = Literal["none", "release", "preview"]


def toolkit_channel(toolkit: str | None) -> Channel:
    """What a toolkit may be used for: nobody publishes speed measured with a preview."""
    version = as_version(toolkit)
    if version is None:
        return "none"
    return "preview" if version in PREVIEW_TOOLKITS else "release"


def worst_channel(toolkits: Iterable[str | None]) -> Channel:
    """The channel of a plan: one node with a preview makes every figure one of a preview."""
    channels = {toolkit_channel(toolkit) for toolkit in toolkits}
    return "preview" if "preview" in channels else "release" if "release" in channels else "none"


def _gate(facts: NodeFacts, need: Requirements) -> Verdict | None:
    """Why a check of the driver does not apply; None if it does."""
    if need.hardware.mode == "none":
        return skip("the profile runs without GPUs", observed="not asked")
    if facts.driver.loaded is not True:
        return skip("no driver answered; see driver.loaded", observed="not observed")
    return None


@node_check(
    "driver.loaded",
    rule="the NVIDIA kernel module is loaded, NVML answers within its deadline, and module and library have "
    "the same version",
    remedy="install driver packages of one version, then reload the module or reboot; if the probe timed "
    "out, drain the node: a GPU is wedged",
)
def loaded(facts: NodeFacts, need: Requirements) -> Verdict:
    if need.hardware.mode == "none":
        return skip("the profile runs without GPUs", observed="not asked")
    driver, required = facts.driver, "loaded, module and library equal"
    reason = facts.errors.get("driver") or facts.errors.get("gpus") or ""
    if driver.loaded is None:
        reason = reason or "; ".join(why for path, why in facts.errors.items() if path.startswith(PROBES))
        why = f"the driver was not observed{': ' if reason else ''}{reason}"
        return Verdict("fail", "not observed", required, why, "driver.loaded")
    if not driver.loaded:
        if "mismatch" in reason.lower():
            reason = f"loaded module and library differ; reload the module or reboot ({reason})"
        return Verdict(
            "fail", "not loaded", required, reason or "no NVIDIA driver is loaded", "driver.loaded"
        )
    if driver.kmd_version is None:
        return unobserved("the module's version", required, facts, "driver.kmd_version")
    if driver.umd_version is None and facts.supported("driver.umd_version"):
        return unobserved("the library's version", required, facts, "driver.umd_version")
    library = driver.umd_version or driver.kmd_version
    faults = []
    if library != driver.kmd_version:
        faults.append(Fault("fail", f"loaded module {driver.kmd_version} and library {library} differ"))
    return from_faults(faults, f"module {driver.kmd_version}, library {library}", required, "driver")


@node_check(
    "driver.version",
    rule="the driver is at least `hardware.driver.min` (else it fails) and equals `hardware.driver.exact` "
    "(else it warns); the GPUs' architecture runs on its branch",
    remedy="install the driver that the profile names, or accept this one in `hardware.driver.exact`",
    severity="fail, warn",
)
def version(facts: NodeFacts, need: Requirements) -> Verdict:
    gate = _gate(facts, need)
    if gate is not None:
        return gate
    wanted, capability = need.hardware.driver, need.of_role.compute_capability
    branch = RUN_DRIVER.get(capability) if capability else None
    if wanted.min is None and wanted.exact is None and branch is None:
        return skip("the profile names no driver", observed=facts.driver.kmd_version or "not asked")
    required = f"at least {wanted.min or 'any'}, tested {wanted.exact or 'any'}"
    found = as_version(facts.driver.kmd_version)
    if found is None:
        return unobserved("the driver's version", required, facts, "driver.kmd_version")
    faults = []
    if not at_least(found, wanted.min):
        faults.append(Fault("fail", f"older than {wanted.min}"))
    elif branch and capability and not at_least(found, branch):
        faults.append(Fault("fail", f"GPUs of {capability[0]}.{capability[1]} run from R{branch} on"))
    elif wanted.exact and found != as_version(wanted.exact):
        faults.append(Fault("warn", f"the run was tested with {wanted.exact}"))
    return from_faults(faults, str(facts.driver.kmd_version), required, "driver.kmd_version")


@node_check(
    "driver.open_module",
    rule="the kernel module is of the flavour `hardware.driver.module_flavour`",
    remedy="install the open kernel module (`nvidia-open`) and reboot: under the proprietary module "
    "GPUs of this family do not enumerate",
)
def open_module(facts: NodeFacts, need: Requirements) -> Verdict:
    gate = _gate(facts, need)
    if gate is not None:
        return gate
    wanted, found = need.hardware.driver.module_flavour, facts.driver.module_flavour
    if wanted is None:
        return skip("the profile accepts every module", observed=found or "not asked")
    if found is None:
        return unobserved("the module's flavour", wanted, facts, "driver.module_flavour")
    faults = [Fault("fail", f"these GPUs need the {wanted} module")] if found != wanted else []
    return from_faults(faults, found, wanted, "driver.module_flavour")


@node_check(
    "cuda.driver_api",
    rule="the driver's CUDA API (`cuDriverGetVersion`) is at least `hardware.cuda.driver_api_min`; the "
    "toolkit is another matter",
    remedy="install a newer driver: CUDA 13 needs 580 or newer",
)
def driver_api(facts: NodeFacts, need: Requirements) -> Verdict:
    gate = _gate(facts, need)
    if gate is not None:
        return gate
    wanted, found = need.hardware.cuda.driver_api_min, facts.cuda.driver_api
    if wanted is None:
        return skip("the profile names no CUDA API", observed=_api(found) if found else "not asked")
    if found is None:
        return unobserved("the driver's CUDA API", f"at least {_api(wanted)}", facts, "cuda.driver_api")
    faults = []
    if found < wanted:
        faults.append(Fault("fail", f"the driver offers CUDA {_api(found)}, programs need {_api(wanted)}"))
    compat = f", by {facts.cuda.compat_package}" if facts.cuda.compat_package else ""
    return from_faults(faults, f"{_api(found)}{compat}", f"at least {_api(wanted)}", "cuda.driver_api")


def _api(number: int) -> str:
    """13030 -> `13.3 (13030)`."""
    return f"{number // 1000}.{number % 1000 // 10} ({number})"


@node_check(
    "cuda.toolkit",
    rule="the toolkit is at least `hardware.cuda.toolkit`, compiles for `compile_architectures`, is not "
    "newer than the driver's CUDA API, and no developer preview (which fails under `forbid_preview`)",
    remedy="use a released toolkit that the driver supports (13.4.1 supersedes the preview 13.4.0; a 13.4 "
    "toolkit wants R615 or cuda-compat-13-4, else new PTX is not compiled); publish no speed from a preview",
    severity="warn, fail",
)
def toolkit(facts: NodeFacts, need: Requirements) -> Verdict:
    wanted, found = need.hardware.cuda, as_version(facts.cuda.toolkit)
    if need.hardware.mode == "none" or (wanted.toolkit is None and not wanted.compile_architectures):
        return skip("the profile names no CUDA toolkit", observed=facts.cuda.toolkit or "not asked")
    required = f"at least {wanted.toolkit or 'any'}, released, not newer than the driver's API"
    if found is None:
        if facts.driver.loaded is not True:
            return skip("no driver answered; see driver.loaded", observed="not observed")
        return unobserved("the CUDA toolkit", required, facts, "cuda.toolkit", "warn")
    texts = []
    if not at_least(found, wanted.toolkit):
        texts.append(f"older than {wanted.toolkit}")
    late = [arch for arch in wanted.compile_architectures if not at_least(found, FIRST_TOOLKIT.get(arch))]
    if late:
        texts.append(f"does not compile for {', '.join(late)}")
    api = facts.cuda.driver_api
    if api is not None and found[:2] > (api // 1000, api % 1000 // 10):
        texts.append(f"newer than the driver's API {_api(api)}: new PTX is not compiled by it")
    faults = [Fault("warn", text) for text in texts]
    if toolkit_channel(facts.cuda.toolkit) == "preview":
        faults.append(
            Fault("fail" if wanted.forbid_preview else "warn", "a developer preview: no figures from it")
        )
    return from_faults(faults, str(facts.cuda.toolkit), required, "cuda.toolkit")
