"""What settings are made of: base classes, lists, and the error for wrong ones."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, PrivateAttr
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX: Final = "FERRYMAN_"


class SettingsError(Exception):
    """The configuration cannot be used. The text names each key and what is wrong with it."""


class _Read:
    """Marks a key whose value names a file that is read."""


READ: Final = _Read()
File = Annotated[Path | None, READ]


class Section(BaseModel):
    """A table of the file. Two are equal if the files that they name had the same content, too."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    _contents: dict[str, str] = PrivateAttr(default_factory=dict)

    def model_post_init(self, _: Any, /) -> None:
        for name, info in type(self).model_fields.items():
            path = getattr(self, name) if READ in info.metadata else None
            if path is not None:
                self._contents[name] = _digest(path)

    def in_use(self) -> dict[str, Any]:
        """Key that is not set -> the value that follows from others."""
        return {}

    def contents(self) -> dict[str, str]:
        """Key of a file that the table names -> digest of what was in it."""
        return self._contents


class Settings(BaseSettings):
    """Base of the two processes' settings; each ignores the other's table."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""  # whoever needs the file says so


def split_commas(value: Any) -> Any:
    """Read ``a,b`` from a variable or a flag as a list."""
    text = isinstance(value, str) and not value.lstrip().startswith("[")
    return [part.strip() for part in value.split(",") if part.strip()] if text else value


StringList = Annotated[tuple[str, ...] | None, BeforeValidator(split_commas)]
