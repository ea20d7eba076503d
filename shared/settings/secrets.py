"""Secrets of the settings: a value, or ``{ file = "…" }``, which is read with the settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, SecretStr

from shared.settings.base import split_commas

MIN_LENGTH: Final = 16
"""Characters: fewer can be guessed."""
_MAKE_ONE: Final = 'python3 -c "import secrets; print(secrets.token_urlsafe(32))" makes one'


class FileSecret(SecretStr):
    """One that stands in a file.

    Attributes:
        line: from 1.
    """

    def __init__(self, value: str, file: Path, line: int = 1) -> None:
        super().__init__(value)
        self.file, self.line = file, line


def _named(value: Any) -> Path | None:
    """The file that a value names instead of a secret."""
    if not (isinstance(value, Mapping) and value.keys() == {"file"}):
        return None
    return Path(str(value["file"])).expanduser().absolute()


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as problem:
        raise ValueError(f"file {file}: {problem.strerror}") from None
    except ValueError:
        raise ValueError(f"file {file}: it is no text") from None


def _read(value: Any) -> Any:
    """The content of a file without the line end behind it."""
    file = _named(value)
    if file is None:
        return value
    text = _text(file)
    if not text.strip():
        raise ValueError(f"file {file}: there is nothing in it")
    return FileSecret(text.removesuffix("\n").removesuffix("\r"), file)


def _read_lines(value: Any) -> Any:
    """The lines of each file that have something in them."""
    values = split_commas(value)
    if _named(value) is not None:
        values = [value]
    if not isinstance(values, list | tuple):
        return values
    found: list[Any] = []
    for one in values:
        file = _named(one)
        if file is None:
            found.append(one)
            continue
        lines = enumerate(_text(file).splitlines(), 1)
        read = [FileSecret(line.strip(), file, at) for at, line in lines if line.strip()]
        if not read:
            raise ValueError(f"file {file}: there is no token in it")
        found += read
    return found


Secret = Annotated[SecretStr, BeforeValidator(_read)]
Secrets = Annotated[tuple[SecretStr, ...] | None, BeforeValidator(_read_lines)]
"""A list, in which a file has one a line; or a file alone."""


def check_length(text: str, where: str) -> None:
    """The message says where the secret is, never the secret: it may be logged.

    Raises:
        ValueError: it can be guessed.
    """
    if len(text) < MIN_LENGTH:
        raise ValueError(
            f"{where} has {len(text)} characters, and needs {MIN_LENGTH} at least; {_MAKE_ONE}"
        )


def identity_of(value: SecretStr | None) -> str | None:
    """The secret of an agent; None: it has none. Raises ValueError."""
    if value is None:
        return None
    text = value.get_secret_value().strip()
    file = f" (file {value.file})" if isinstance(value, FileSecret) else ""
    check_length(text, f"identity_secret{file}")
    return text


def secret_files(table: BaseModel) -> Iterator[tuple[str, Path]]:
    """Key, file: of each secret of a table that stands in one."""
    for key in type(table).model_fields:
        value = getattr(table, key)
        values = value.values() if isinstance(value, dict) else value
        for one in values if isinstance(value, dict | tuple) else [value]:
            if isinstance(one, FileSecret):
                yield key, one.file
