"""The error of a profile that cannot be loaded."""

from __future__ import annotations


class ProfileProblem(Exception):
    """A profile that cannot be loaded, in words for the user.

    Args:
        what: One line for each fault: field, value and what is allowed.
        where: File, or the first field at fault.
        hint: What to do.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
