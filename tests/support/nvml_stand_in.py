"""A module in place of `pynvml`: the calls and structures that the collector uses, answered from values.

Structures have the layout of nvidia-ml-py 13.615, with what bites there: bytes decoded on access, a fabric
state one byte wide in a four-byte field, a fabric structure 4 without version and clique.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, c_char, c_uint, c_uint8, c_uint32, c_ulonglong
from types import SimpleNamespace
from typing import Any
from uuid import UUID

CLUSTER = "7b1d5e2a-0c44-4f7e-9a63-52f0a1b2c3d4"
MIB = 2**20


class NVMLError(Exception):
    def __init__(self, value: int):
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        texts = {3: "Not Supported", 4: "Insufficient Permissions", 15: "GPU is lost", 999: "Unknown Error"}
        return texts.get(self.value, f"error {self.value}")


class _Decoding(Structure):
    """Decodes bytes on access, as the binding does."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return value.decode() if isinstance(value, bytes) else value


class FabricV3(_Decoding):
    _fields_ = [
        ("version", c_uint),
        ("clusterUuid", c_uint8 * 16),
        ("status", c_uint),
        ("cliqueId", c_uint32),
        ("state", c_uint),
        ("healthMask", c_uint32),
        ("healthSummary", c_uint8),
    ]


class FabricV2(_Decoding):
    _fields_ = FabricV3._fields_[:-1]


class Clique(_Decoding):
    _fields_ = [("type", c_uint8), ("id", c_uint32)]


class FabricV4(_Decoding):
    _fields_ = [
        ("clusterUuid", c_uint8 * 16),
        ("status", c_uint),
        ("cliques", Clique * 64),
        ("numCliques", c_uint32),
        ("state", c_uint8),
        ("healthMask", c_uint32),
        ("healthSummary", c_uint8),
    ]


class PlatformV2(_Decoding):
    _fields_ = [
        ("version", c_uint),
        ("ibGuid", c_char * 16),
        ("chassisSerialNumber", c_char * 16),
        ("slotNumber", c_char),
        ("trayIndex", c_char),
        ("hostId", c_char),
        ("peerType", c_char),
        ("moduleId", c_char),
    ]


class SramStatus(_Decoding):
    _fields_ = [
        ("version", c_uint),
        ("volatileUncParity", c_ulonglong),
        ("volatileUncSecDed", c_ulonglong),
        ("bThresholdExceeded", c_uint),
    ]


class Nvml:
    """The module. Change `values`, or put a call's name into `fails` with NVML's code.

    Args:
        missing: Names that this version of the binding does not have.
        init: NVML's code with which it refuses to start.
    """

    NVMLError = NVMLError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC = 0, 1
    NVML_MEMORY_LOCATION_DRAM, NVML_MEMORY_LOCATION_SRAM = 2, 7
    nvmlMemory_v2 = 0x02000028
    c_nvmlGpuFabricInfo_v2_t, c_nvmlGpuFabricInfo_v3_t, c_nvmlGpuFabricInfo_v4_t = (
        FabricV2,
        FabricV3,
        FabricV4,
    )
    c_nvmlPlatformInfo_v2_t, c_nvmlEccSramErrorStatus_v1_t = PlatformV2, SramStatus

    def __init__(self, count: int = 4, missing: tuple[str, ...] = (), init: int = 0):
        self._count, self._missing, self._init = count, missing, init
        self.fails: dict[str, int] = {"nvmlDeviceGetRetiredPagesPendingStatus": 3}
        self.lost: dict[int, int] = {}
        self.fields: dict[tuple[int, int], int] = {(91, 0): 18, (230, 0): 0}
        self.fabric: dict[str, Any] = {"state": 3, "status": 0, "clique": 32766, "mask": 0x11AA, "summary": 1}
        self.cliques = ((1, 7), (0, 32766))
        self.guid = bytes(range(0x90, 0xA0))
        self.slot = 3
        self.processes: list[Any] = []
        self.sram_errors = {1: 2}
        self.reasons, self.aggregate_errors = 0x41, 4

    @classmethod
    def healthy(cls, **named: Any) -> Nvml:
        """Without the errors by which the tests tell fields apart."""
        nvml = cls(**named)
        nvml.sram_errors, nvml.reasons, nvml.aggregate_errors = {}, 0x1, 0
        return nvml

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name in object.__getattribute__(self, "_missing"):
            raise AttributeError(name)
        value = object.__getattribute__(self, name)
        if not name.startswith("nvml") or not callable(value):
            return value
        code = object.__getattribute__(self, "fails").get(name)
        return value if code is None else _raising(code)

    def nvmlInit(self) -> None:
        if self._init:
            raise NVMLError(self._init)

    def nvmlShutdown(self) -> None: ...
    def nvmlErrorString(self, code: int) -> bytes:
        return {23: b"Insufficient Resources"}.get(code, b"Unknown")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "610.57.04"

    def nvmlSystemGetNVMLVersion(self) -> str:
        return "13.610.57.04"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13030

    def nvmlSystemGetConfComputeState(self) -> Any:
        return SimpleNamespace(ccFeature=0)

    def nvmlSystemGetProcessName(self, pid: int) -> bytes:
        return b"/srv/app/bin/python3 -m server"

    def nvmlDeviceGetCount(self) -> int:
        return self._count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.lost:
            raise NVMLError(self.lost[index])
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"0000000{8 + handle}:06:00.0".encode(), pciDeviceId=0x31C210DE)

    def nvmlDeviceGetFieldValues(self, handle: int, wanted: list[tuple[int, int]]) -> list[Any]:
        return [self._field(handle, place) for place in wanted]

    def _field(self, handle: int, place: tuple[int, int]) -> Any:
        default = {165: 1, 164: 53125}.get(place[0])
        known = self.fields.get((place[0], handle * 100 + place[1]), self.fields.get(place, default))
        value = SimpleNamespace(uiVal=known, ullVal=0xDEAD, siVal=known)
        return SimpleNamespace(nvmlReturn=3 if known is None else 0, valueType=1, value=value)

    def nvmlDeviceGetGpuFabricInfoV(self, handle: int, reference: Any) -> None:
        info = reference._obj
        if isinstance(info, FabricV3) and "v3" in self.fabric.get("refuses", ""):
            raise NVMLError(25)
        self._fill(info)
        info.cliqueId = self.fabric["clique"]
        info.state = 0xABCD00 | self.fabric["state"]

    def nvmlDeviceGetGpuFabricInfo_v4(self, handle: int, reference: Any) -> None:
        if "v4" in self.fabric.get("refuses", ""):
            raise NVMLError(13)
        info = reference._obj
        self._fill(info)
        info.state, info.numCliques = self.fabric["state"], len(self.cliques)
        for place, (kind, number) in enumerate(self.cliques):
            info.cliques[place].type, info.cliques[place].id = kind, number

    def _fill(self, info: Any) -> None:
        info.clusterUuid = (c_uint8 * 16)(*UUID(self.fabric.get("uuid", CLUSTER)).bytes)
        info.status, info.healthMask = self.fabric["status"], self.fabric["mask"]
        if not isinstance(info, FabricV2):
            info.healthSummary = self.fabric["summary"]

    def nvmlDeviceGetPlatformInfo(self, handle: int, reference: Any) -> None:
        raw = memoryview(reference._obj).cast("B")
        raw[4:20] = self.guid
        raw[20:36] = b"1820000000001\0\0\0"
        raw[36:41] = bytes([self.slot, 2, 1, 1, handle + 1])

    def nvmlDeviceGetSramEccErrorStatus(self, handle: int, reference: Any) -> None:
        reference._obj.volatileUncSecDed = self.sram_errors.get(handle, 0)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self.reasons

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        return self.aggregate_errors

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int) -> Any:
        return SimpleNamespace(total=284208 * MIB, reserved=947 * MIB, used=12 * MIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return self.processes if handle == 0 else []

    def nvmlDeviceGetC2cModeInfoV(self, handle: int) -> Any:
        return SimpleNamespace(isC2cEnabled=1)


def _raising(code: int) -> Callable[..., Any]:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise NVMLError(code)

    return fail


_ANSWERS: dict[str, Any] = {
    "Name": b"NVIDIA GB300",
    "UUID": b"GPU-00000000-1111-2222-3333-000000000000",
    "Serial": "1650000000001",
    "VbiosVersion": "97.10.4A.00.0D",
    "Architecture": 10,
    "CudaComputeCapability": (10, 3),
    "MigMode": [0, 0],
    "EccMode": [1, 1],
    "ComputeMode": 0,
    "AddressingMode": 2,
    "PersistenceMode": 1,
    "MemoryErrorCounter": 0,
    "RemappedRows": (0, 0, 0, 0),
    "RepairStatus": [0, 0],
    "UnrepairableMemoryFlag_v1": 0,
    "RetiredPagesPendingStatus": 0,
    "PowerManagementLimit": 1400000,
    "TemperatureV": 31,
    "MarginTemperature": 49,
    "CurrPcieLinkGeneration": 6,
    "CurrPcieLinkWidth": 16,
    "PcieReplayCounter": 0,
    "NvLinkVersion": 7,
    "NvLinkRemoteDeviceType": 2,
    "P2PStatus": 0,
}


def _answering(value: Any) -> Callable[..., Any]:
    return lambda self, *arguments: value


for _name, _value in _ANSWERS.items():
    setattr(Nvml, f"nvmlDeviceGet{_name}", _answering(_value))
