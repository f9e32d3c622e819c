"""How a setting is declared: value, meaning, why that default, and what the default assumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

Auto = Literal["auto"]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Threads = Annotated[int, Field(ge=1, le=1024)]


class Section(BaseModel):
    """Base of every settings table: immutable, and closed to names it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


@dataclass(frozen=True, slots=True)
class Rationale:
    """What the generated reference prints beside a default."""

    description: str
    reason: str
    assumes: str


def setting(default: Any, description: str, *, reason: str, assumes: str = "any run", **limits: Any) -> Any:
    """Declare one setting.

    ``default`` is a value or ``...`` for a required setting; ``reason`` says why this default;
    ``assumes`` names the kind of task, model (dense or MoE) and schedule (sync or async) it is right for.
    ``limits`` are pydantic's own (``ge``, ``gt``, ``le``, ``min_length``...).
    """
    extra: dict[str, Any] = {"reason": reason, "assumes": assumes}
    if default is ...:
        return Field(description=description, json_schema_extra=extra, **limits)
    return Field(default=default, description=description, json_schema_extra=extra, **limits)


def rationale(info: FieldInfo) -> Rationale:
    """The texts of a setting declared with :func:`setting`."""
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return Rationale(info.description or "", str(extra.get("reason", "")), str(extra.get("assumes", "")))
