"""What a peer says is a number that can be kept, or no answer at all."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from shared.wire import AgentEvent, AgentHealth, PayloadDoc, PayloadList, PayloadState

_PAYLOAD = {"id": 1, "status": "Failed"}


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**40])
@pytest.mark.parametrize(
    ("model", "document", "field"),
    [
        (PayloadDoc, _PAYLOAD, "id"),
        (PayloadDoc, _PAYLOAD, "exit_code"),
        (PayloadDoc, _PAYLOAD | {"result": {"sha256": ""}}, "result.size"),
        (PayloadList, {"payloads": []}, "seq"),
        (AgentEvent, {}, "seq"),
        (AgentHealth, {"status": "ok"}, "slots"),
    ],
)
def test_a_number_that_no_database_can_keep_is_refused(model, document, field, number):
    def with_number(value: int) -> str:
        outer, _, inner = field.partition(".")
        nested = document.get(outer)
        made = {**nested, inner: value} if isinstance(nested, dict) else value
        return json.dumps(document | {outer: made})

    model.model_validate_json(with_number(2**63 - 1))
    with pytest.raises(ValidationError):
        model.model_validate_json(with_number(number))


@pytest.mark.parametrize("seconds", ["1e400", "-1e400", "NaN"])
@pytest.mark.parametrize("field", ["wall_s", "cpu_s"])
def test_a_time_that_never_ends_is_refused(field: str, seconds: str) -> None:
    usage = json.dumps({"wall_s": 1.0} | {field: 12345}).replace("12345", seconds)
    with pytest.raises(ValidationError):
        PayloadDoc.model_validate_json(f'{{"id": 1, "status": "Failed", "usage": {usage}}}')


def test_what_a_payload_was_given_is_not_kept():
    """An agent could fill the server's memory with it; nested lists take many times their size."""
    nested = b'{"id":1,"status":"Running","input":{"a":[' + b"[]," * 10_000 + b"[]]}}"
    assert PayloadDoc.model_validate_json(nested).input == {}
    assert PayloadDoc(id=1, status=PayloadState.RUNNING).model_dump()["input"] == {}
