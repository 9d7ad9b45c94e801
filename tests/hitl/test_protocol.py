"""Messages of clients: what is read, what is refused, and that the shipped schema says the same."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harl.hitl.network.protocol import MESSAGES, ProtocolError, encode, parse
from harl.hitl.network.strict_json import MAX_DEPTH, plain
from tests.hitl.talking import SAID_BY_CLIENT, SCHEMA, no_constant, validator

SEEN = {"ep": 3, "step": 17}
SAMPLES: list[dict[str, Any]] = [
    {"v": 1, "type": "hello", "token": "t" * 16},
    {
        "v": 1, "type": "hello", "token": "t" * 16, "client": "page/1.0", "want_role": "trainer", "resume": "r" * 32,
        "name": "Ада", "consent": "2024-1", "device": "touch",
    },
    {"type": "consent", "version": "2024-1"},
    {"type": "subscribe", "env": 0, "mode": "jpeg", "fps": 15, "max_px": 512},
    {"type": "subscribe", "env": 3, "mode": "none"},
    {"type": "control", "op": "request", "agent": "mover", "mode": "toggle"},
    {"type": "input", "agent": "mover", "seq": 9, "seen": SEEN, "action": 2, "held": True, "ttl_ms": 500},
    {"type": "input", "agent": "arm", "seq": 10, "seen": SEEN, "action": [0.5, -1], "held": True},
    {"type": "input", "agent": "arm", "seq": 11, "seen": SEEN, "action": None, "held": False},
    {
        "type": "feedback", "agent": "team", "seq": 1, "value": -1, "seen": SEEN, "t_client_ms": 12.5, "shown_ms": 300,
        "confidence": 0.5,
    },
    {"type": "undo", "seq": 1},
    {"type": "pace", "op": "pause"},
    {"type": "pace", "op": "speed", "value": 0.5},
    {"type": "mark", "label": "discard", "ep": 2},
    {"type": "ping", "t": 1e6, "rtt": 12},
    {"type": "survey", "answers": {"trust": 4, "why": "it\nhelped"}},
]  # fmt: skip
MISSING = object()


def by_schema(message: object) -> bool:
    return bool(SAID_BY_CLIENT.is_valid(message))


def by_parser(message: object) -> bool:
    try:
        parse(json.dumps(message))
    except ProtocolError:
        return False
    return True


def refusal(text: str | bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        parse(text)
    return caught.value


def test_schema_is_a_schema_and_has_every_message() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert {f"client_{name}" for name in MESSAGES} == {name for name in SCHEMA["$defs"] if name.startswith("client_")}
    assert {sample["type"] for sample in SAMPLES} == set(MESSAGES)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["type"])
def test_messages_are_read_as_they_are_meant(sample: dict[str, Any]) -> None:
    SAID_BY_CLIENT.validate(sample)
    message = parse(json.dumps(sample))
    assert type(message) is MESSAGES[sample["type"]]
    for name, value in sample.items():
        if name not in ("type", "seen") and (name != "v" or sample["type"] == "hello"):
            assert getattr(message, name) == (tuple(value) if isinstance(value, list) else value)
    if "seen" in sample:
        assert (message.seen.ep, message.seen.step) == (3, 17)  # type: ignore[union-attr]


def test_unknown_fields_are_ignored_and_the_last_of_equal_keys_counts() -> None:
    assert parse('{"type":"undo","seq":1,"later":{"version":2}}') == parse('{"type":"undo","seq":5,"seq":1}')


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("not json", "not_json"),
        ("", "not_json"),
        ('{"type":"undo","seq":', "not_json"),
        ('{"type":"undo","seq":1} trailing', "not_json"),
        ("null", "not_object"),
        ("[1,2,3]", "not_object"),
        ("5", "not_object"),
        ('"undo"', "not_object"),
        ("{}", "unknown_type"),
        ('{"type":42}', "unknown_type"),
        ('{"type":["undo"]}', "unknown_type"),
        ('{"type":"preference","pair_id":1}', "unknown_type"),
        ('{"type":"undo","seq":NaN}', "not_finite"),
        ('{"type":"undo","seq":-Infinity}', "not_finite"),
        ('{"type":"undo","seq":1,"more":1e999}', "not_finite"),
        ('{"type":"undo","seq":' + "9" * 5000 + "}", "not_finite"),
        ('{"type":"undo","seq":' + "9" * 17 + "}", "bad_field"),
        ('{"type":"undo","seq":true}', "bad_field"),
        ('{"type":"undo","seq":"1"}', "bad_field"),
        ('{"type":"undo","seq":1.5}', "bad_field"),
        ('{"type":"undo","seq":-1}', "bad_field"),
        ('{"type":"undo"}', "bad_field"),
        ('{"v":2,"type":"undo","seq":1}', "version"),
        ('{"v":true,"type":"undo","seq":1}', "version"),
        ('{"v":"1","type":"hello","token":"tttttttttttttttt"}', "version"),
        ('{"type":"hello","token":"tttttttttttttttt"}', "version"),
        ('{"v":1,"type":"hello","token":"t","name":"\\ud800"}', "bad_field"),
        ('{"v":1,"type":"hello","token":"t","name":"a\\nb"}', "bad_field"),
        ('{"v":1,"type":"hello","token":"t","name":"' + "n" * 33 + '"}', "bad_field"),
        ("[" * 200 + "]" * 200, "too_deep"),
        ('{"a":' * 12 + "1" + "}" * 12, "too_deep"),
        ("[" * 10_000, "too_deep"),
        ('"' + "a" * 20_000 + '"', "too_large"),
        (b"\x00\x01\x02", "binary"),
    ],
)
def test_what_is_no_message_is_refused_with_a_reason_WS05(text: str | bytes, code: str) -> None:
    error = refusal(text)
    assert (error.code, bool(error.text), len(error.text) < 400) == (code, True, True)


def test_errors_name_field_allowed_values_and_the_nearest() -> None:
    kind = refusal('{"type":"feedbak"}').text
    assert "feedback" in kind
    assert "did you mean feedback" in kind
    mode = refusal('{"type":"subscribe","env":0,"mode":"jpg"}').text
    assert mode == "subscribe.mode: must be one of jpeg, state, none, not 'jpg'; did you mean jpeg?"
    nested = refusal('{"type":"input","agent":"a","seq":1,"seen":{"ep":1},"action":1,"held":true}').text
    assert nested == "input.seen.step: is missing"
    assert "must be an integer from 0 to 4294967295, not -4" in refusal('{"type":"mark","label":"fail","ep":-4}').text


def test_a_token_is_never_repeated_SEC05() -> None:
    long = "secret" * 100
    assert "secret" not in refusal(json.dumps({"v": 1, "type": "hello", "token": long})).text
    assert "secret" not in repr(parse(json.dumps({"v": 1, "type": "hello", "token": "secret", "resume": "secret2"})))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(["hold", "jpeg", "", "x" * 257]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_parser_and_schema_refuse_the_same(sample: dict[str, Any], data: st.DataObject) -> None:
    changed = json.loads(json.dumps(sample))
    place = changed
    field = data.draw(st.sampled_from(sorted(changed)))
    if isinstance(changed[field], dict) and data.draw(st.booleans()):
        place, field = changed[field], data.draw(st.sampled_from(sorted(changed[field])))
    value = data.draw(st.just(MISSING) | ANY)
    if value is MISSING:
        del place[field]
    else:
        place[field] = value
    beyond_all_use = any(isinstance(part, int) and abs(part) >= 10**20 for part in leaves(changed))
    assert by_parser(changed) == (by_schema(changed) and not beyond_all_use and depth(changed) <= MAX_DEPTH)


def leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list) else [value]


def depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max((depth(part) for part in value), default=0) if isinstance(value, list) else 0


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.text(max_size=200) | st.binary(max_size=50) | ANY.map(json.dumps))
def test_anything_is_either_read_or_refused(text: str | bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert type(parse(text)) in MESSAGES.values()


def test_whatever_is_sent_is_strict_json_WS06() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    sent = encode(
        {
            "bytes": b"\xff\x00", "int64": np.int64(7), "float32": np.float32(0.5), "bool": np.bool_(True),
            "nan": math.nan, "inf": [np.float32(np.inf), -math.inf], "array": np.array([[1.5, np.nan]]),
            "keys": {1: "a", np.int64(2): "b", None: "c"}, "set": {4}, "object": object(), "text": np.str_("x"),
            "when": np.datetime64("2024-01-01"), "half": "\ud800", "loop": loop, "tuple": (1, None),
        }
    )  # fmt: skip
    read = json.loads(sent, parse_constant=no_constant)
    assert sent.isascii()
    assert (read["int64"], read["float32"], read["bool"], read["nan"], read["inf"]) == (7, 0.5, True, None, [None] * 2)
    assert (read["array"], read["keys"], read["tuple"]) == ([[1.5, None]], {"1": "a", "2": "b", "None": "c"}, [1, None])
    assert (read["bytes"], read["object"], read["text"], read["set"]) == ("2 bytes", "object", "x", [4])


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    st.recursive(
        st.floats(allow_subnormal=False) | st.integers() | st.text() | st.binary() | st.none(), st.lists, max_leaves=10
    )
)
def test_encoding_never_fails(value: Any) -> None:
    read = json.loads(encode({"value": value}), parse_constant=no_constant)
    assert read["value"] == plain(value)


def test_schema_of_the_server_tells_right_from_wrong() -> None:
    said, meta = validator("server"), validator("meta")
    assert said.is_valid({"v": 1, "type": "pong", "t": 1, "t_server": 2})
    assert not said.is_valid({"v": 1, "type": "pong", "t": None, "t_server": 2})
    assert not said.is_valid({"v": 1, "type": "ack", "seq": 1, "agent": "a", "applied": None, "status": "fine"})
    assert not meta.is_valid({"env_steps": 1, "done": False, "pace": "fast"})
