"""The models of documents as JSON schemas, with what their source says of each field."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.api.field_texts import TEXTS
from shared.wire import Wire

REF: Final = "#/components/schemas/{model}"


def schemas(models: Iterable[type[Wire]]) -> dict[str, Any]:
    """Name -> schema, of the models and of all that they hold."""
    wanted = sorted(set(models), key=lambda model: model.__name__)
    _, found = models_json_schema([(one, "serialization") for one in wanted], ref_template=REF)
    definitions: dict[str, Any] = found.get("$defs", {})
    for model in _all_models():
        schema = definitions.get(model.__name__)
        if schema is not None and "properties" in schema:
            said = field_texts(model)
            for name, field in schema["properties"].items():
                text = said.get(name) or TEXTS.get(name)
                if text is not None:
                    field.setdefault("description", text)
                field.pop("title", None)
    return definitions


def _all_models() -> Iterable[type[Wire]]:
    waiting = [Wire]
    while waiting:
        model = waiting.pop()
        yield model
        waiting += model.__subclasses__()


def field_texts(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the text below it in the source of its model."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if issubclass(one, BaseModel) and one is not BaseModel:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
            assert isinstance(tree, ast.ClassDef)
            for field, text in zip(tree.body, tree.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                    and isinstance(text.value.value, str)
                ):
                    found[field.target.id] = inspect.cleandoc(text.value.value)
    return found
