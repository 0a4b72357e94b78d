"""`ProfileOverrides`: the profile with every field optional, generated from it.

Prefect turns it into the schema of the flow's `overrides` parameter, so that an unknown, mistyped or
out-of-range field is refused before a run exists. Leaving a field out, or giving null to a field that
cannot be empty, keeps the profile's value; null empties a field that may be empty.
"""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, create_model
from pydantic.fields import FieldInfo

from profiles.schema import Profile


def _nullable(field: FieldInfo) -> bool:
    origin = typing.get_origin(field.annotation)
    return origin in (typing.Union, types.UnionType) and type(None) in typing.get_args(field.annotation)


def _optional(field: FieldInfo) -> Any:
    """The field's type with its bounds, or None."""
    annotation: Any = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _mirror(annotation) | None
    if field.metadata:
        annotation = Annotated[(annotation, *field.metadata)]
    return annotation | None


def _mirror(model: type[BaseModel]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        name: (_optional(field), FieldInfo(default=None, description=field.description))
        for name, field in model.model_fields.items()
    }
    mirrored: type[BaseModel] = create_model(
        f"{model.__name__}Overrides",
        __config__=ConfigDict(extra="forbid", frozen=True),
        __doc__=f"{(model.__doc__ or '').strip().splitlines()[0]} (only what differs from the profile)",
        **fields,
    )
    return mirrored


if typing.TYPE_CHECKING:

    class ProfileOverrides(BaseModel):
        """Everything of `Profile`, optional."""

else:
    ProfileOverrides = _mirror(Profile)
    ProfileOverrides.__name__ = ProfileOverrides.__qualname__ = "ProfileOverrides"
    ProfileOverrides.__module__ = __name__


def override_values(overrides: BaseModel | None, model: type[BaseModel] = Profile) -> dict[str, Any]:
    """The values that were really given, nested, ready for `load_profile`."""
    values: dict[str, Any] = {}
    for name in overrides.model_fields_set if overrides is not None else ():
        value = getattr(overrides, name)
        field = model.model_fields[name]
        if isinstance(value, BaseModel):
            inner = override_values(value, typing.cast("type[BaseModel]", field.annotation))
            if inner:
                values[name] = inner
        elif value is not None or _nullable(field):
            values[name] = value
    return values
