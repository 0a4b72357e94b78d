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


def _part(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a nested part, which may be one that the profile leaves empty; None for a plain value."""
    kinds = typing.get_args(field.annotation) if _nullable(field) else (field.annotation,)
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return models[0] if len(models) == 1 else None


def _optional(field: FieldInfo) -> Any:
    """The field's type with its bounds, or None."""
    annotation: Any = field.annotation
    if (part := _part(field)) is not None:
        return _mirror(part) | None
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
        part = _part(field)
        if isinstance(value, BaseModel) and part is not None:
            inner = override_values(value, part)
            if inner or _nullable(field):  # a part that may be empty is filled by `{}`, with its defaults
                values[name] = inner
        elif value is not None or _nullable(field):
            values[name] = _plain(value)
    return values


def _plain(value: Any) -> Any:
    """Models inside a mapping become what was given."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
