"""Log of a run: everything that Prefect and the pipeline log goes to `logs/flow.log`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tasks.errors import RetrainError
from tasks.redaction import mask_error, redact
from tasks.run_folder import RunFolder

_LOGGERS = ("prefect", "retrain_dspark", "mlflow")
_RAISING = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _KnownErrors(logging.Filter):
    """Leaves the traceback out where the error already says what happened, where, and what to do."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, RetrainError):
            record.exc_info = None
            record.exc_text = None
        return True


class _Masked(logging.Formatter):
    """Leaves secrets out: libraries repeat addresses with their passwords."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


_known = _KnownErrors()


def hide_known_tracebacks() -> None:
    """Keep Prefect from logging a traceback for an error that is made for the user."""
    for name in _RAISING:
        logging.getLogger(name).addFilter(_known)


def mask_records() -> None:
    """Let every record that is made from now on hold no secret, whoever handles it: Prefect keeps some."""
    make = logging.getLogRecordFactory()
    if getattr(make, "masks", False):
        return

    def masked(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if isinstance(record.exc_info, tuple):
            mask_error(record.exc_info[1])
        try:
            text = record.getMessage()
        except (TypeError, ValueError, KeyError):  # the fault of who logs, and logging says so itself
            return record
        if (hidden := redact(text)) != text:
            record.msg, record.args = hidden, ()
        return record

    masked.masks = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(masked)


@contextmanager
def flow_log(run: RunFolder) -> Iterator[None]:
    """Write log records to the run's `flow.log` until the run ends."""
    mask_records()
    handler = logging.FileHandler(run.logs / "flow.log", encoding="utf-8")
    handler.setFormatter(_Masked(_FORMAT))
    logging.getLogger("retrain_dspark").setLevel(logging.INFO)
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(handler)
        handler.close()
