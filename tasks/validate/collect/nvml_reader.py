"""Calls to NVML, field by field: what a call does not give is recorded and never ends the node.

`nvml` is the module `pynvml` (distribution nvidia-ml-py) or what a test puts in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tasks.validate.collect.findings import Findings

NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED = 3, 13, 26
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 9, 12, 18
GPU_IS_LOST, RESET_REQUIRED = 15, 16
_NOT_OFFERED = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED)
_GONE = (GPU_IS_LOST, RESET_REQUIRED)

Value = TypeVar("Value")


class LostGpu(Exception):
    """The GPU no longer answers: nothing more of it can be read."""


class Reader:
    """Reads fields of one group (`gpus[2]`) and keeps the reasons of those that are not there."""

    def __init__(self, nvml: Any, findings: Findings, prefix: str = ""):
        self.nvml = nvml
        self.findings = findings
        self.prefix = prefix
        # A call that this binding does not know, or that it knows in a version that the driver does not.
        self._unknown = (AttributeError, getattr(nvml, "NVMLLibraryMismatchError", AttributeError))

    def get(self, field: str, call: Callable[[], Value], also: tuple[str, ...] = ()) -> Value | None:
        """The value of `field`, or None with its reason recorded.

        Args:
            also: Fields that the same call gives.

        Raises:
            LostGpu: The GPU fell off the bus or needs a reset.
        """
        paths = [f"{self.prefix}.{name}" if self.prefix else name for name in (field, *also)]
        try:
            return call()
        except self.nvml.NVMLError as error:
            code = error.value
            if code in _GONE:
                raise LostGpu(words(error)) from error
            if code in _NOT_OFFERED:
                self.findings.not_supported += paths
            else:
                self.findings.errors[paths[0]] = words(error)
        except self._unknown:
            self.findings.not_supported += paths
        except Exception as error:  # bytes or structs of another layout: costs this field only
            self.findings.errors[paths[0]] = f"{type(error).__name__}: {error}"
        return None

    def quiet(self, call: Callable[[], Value]) -> Value | None:
        """The same without a record, for calls that another one replaces."""
        try:
            return call()
        except self.nvml.NVMLError as error:
            if error.value in _GONE:
                raise LostGpu(words(error)) from error
        except Exception:  # another call replaces this one
            return None
        return None

    def first(self, field: str, *calls: Callable[[], Value]) -> Value | None:
        """The first of several calls that answers; the last one's reason is recorded."""
        for call in calls[:-1]:
            value = self.quiet(call)
            if value is not None:
                return value
        return self.get(field, calls[-1])


def words(error: Exception) -> str:
    """NVML's own text of an error."""
    return text(str(error)) or f"NVML error {getattr(error, 'value', '?')}"


def text(value: str | bytes) -> str:
    """NVML's strings; some versions of the binding return bytes."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def field_values(nvml: Any, handle: Any, wanted: list[tuple[int, int]]) -> list[int | None]:
    """Values of (field id, scope) pairs, asked for in one call; None where the GPU does not offer one."""
    answers = nvml.nvmlDeviceGetFieldValues(handle, wanted)
    return [None if answer.nvmlReturn else _value_of(answer) for answer in answers]


def field_value(nvml: Any, handle: Any, field: int) -> int:
    """Value of one field; raises NVMLError with the field's own code."""
    answer = nvml.nvmlDeviceGetFieldValues(handle, [(field, 0)])[0]
    if answer.nvmlReturn:
        raise nvml.NVMLError(answer.nvmlReturn)
    return _value_of(answer)


def _value_of(answer: Any) -> int:
    """By the type that NVML says: a narrower read of the union could see old bytes above it."""
    kinds = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    return int(getattr(answer.value, kinds.get(answer.valueType, "dVal")))
