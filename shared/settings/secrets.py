"""Secrets of the settings, which may stand in files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import SecretStr

_MIN_LENGTH: Final = 16
"""Characters: fewer can be guessed."""


def secret_of(key: str, value: SecretStr | None, file: Path | None) -> str | None:
    """The secret that stands under a key, or in the file of ``KEY_file``; None: there is none.

    Raises:
        ValueError: the text says what is wrong, never the secret.
    """
    if file is None:
        text = value.get_secret_value() if value is not None else None
        where = key
    elif value is not None:
        raise ValueError(f"give {key} or {key}_file, not both")
    else:
        where = f"{key}_file {file}"
        try:
            text = file.read_text().strip()
        except OSError as problem:
            raise ValueError(f"{where}: {problem.strerror}") from None
        except ValueError:
            raise ValueError(f"{where}: it is no text") from None
    if text is not None and len(text) < _MIN_LENGTH:
        raise ValueError(
            f"{where} has {len(text)} characters, and needs {_MIN_LENGTH} at least; "
            'python3 -c "import secrets; print(secrets.token_urlsafe(32))" makes one'
        )
    return text
