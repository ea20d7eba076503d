"""What settings are made of: base classes, lists, and the error for wrong ones."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX: Final = "FERRYMAN_"


class SettingsError(Exception):
    """The configuration cannot be used. The text names each key and what is wrong with it."""


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Settings(BaseSettings):
    """Base of the two processes' settings; each ignores the other's table."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )


def split_commas(value: Any) -> Any:
    """Read ``a,b`` from a variable or a flag as a list."""
    text = isinstance(value, str) and not value.lstrip().startswith("[")
    return [part.strip() for part in value.split(",") if part.strip()] if text else value


StringList = Annotated[tuple[str, ...] | None, BeforeValidator(split_commas)]
