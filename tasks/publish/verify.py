"""Refuse a damaged draft: `python -m tasks.publish.verify FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from tasks.errors import PublishError
from tasks.publish.check_folder import folder_problems, main


def verify_folder(folder: Path) -> None:
    """Check files, keys and tensors of a published draft.

    Raises:
        PublishError: It is not whole; the message lists every file, key or tensor that is missing or changed.
    """
    problems = folder_problems(folder)
    if problems:
        raise PublishError(
            "the draft is not whole: " + "; ".join(problems),
            where=str(folder),
            hint="publish it again, or copy the whole folder again from where it came",
        )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
