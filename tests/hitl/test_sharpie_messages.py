"""What a site is sent: plain JSON that it can store, pictures with right colours."""

from __future__ import annotations

import dataclasses
import enum
import json
import logging

import numpy as np
import pytest
import torch

from harl.hitl.sharpie import sanitize_data, send_message
from harl.hitl.sharpie_site.frames import send_again, send_refusal
from harl.hitl.sharpie_site.messages import ProtocolError, end_flags, loads
from harl.hitl.sharpie_site.pictures import as_rgb
from tests.hitl.sharpie_fakes import FakeSocket, picture_of


class Colour(enum.IntEnum):
    RED = 3


@dataclasses.dataclass
class Pair:
    one: int
    two: tuple[float, ...]


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (np.arange(300.0), [float(i) for i in range(300)]),
        (np.array([1.0, np.nan, np.inf, -np.inf]), [1.0, None, None, None]),
        (np.array([[1, 2], [3, 4]], np.uint8), [[1, 2], [3, 4]]),
        (np.array(5.0), 5.0),
        (np.float32(np.nan), None),
        (float("inf"), None),
        (np.bool_(True), True),
        (np.int64(7), 7),
        (np.array([True, False]), [True, False]),
        (Colour.RED, 3),
        ((1, (2, 3)), [1, [2, 3]]),
        ({3, 1, 2}, [1, 2, 3]),
        (b"ab", "YWI="),
        (torch.tensor([1.0, float("nan")], requires_grad=True), [1.0, None]),
        (Pair(1, (2.0,)), {"one": 1, "two": [2.0]}),
        ({1: "a", (1, 2): "b", None: "c"}, {"1": "a", "[1, 2]": "b", "null": "c"}),
        ("a\0b\ud800", "a\ufffdb?"),
        (None, None),
        (True, True),
    ],
)  # fmt: skip
def test_data_become_plain_json(data: object, plain: object) -> None:
    result = sanitize_data(data)
    assert result == plain
    assert type(result) is type(plain)
    json.dumps(result, allow_nan=False)


def test_what_has_no_form_is_sent_as_its_text_and_said(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    with caplog.at_level(logging.WARNING, "harl.sharpie"):
        assert sanitize_data([Odd(), Odd()]) == ["odd", "odd"]
    assert [record.getMessage() for record in caplog.records] == ["Odd has no form in JSON; its text is sent"]


def test_a_person_cannot_have_the_site_unpickle_what_they_typed() -> None:
    poison = {"agent_0": {"__lzma__": True, "data": "gASVBQAAAA=="}}
    assert "__lzma__" not in sanitize_data(poison)["agent_0"]
    socket = FakeSocket([])
    send_message(socket, Still(None), 0, False, False, {}, poison, 0)
    assert set(socket.sent[0]["actions"]["agent_0"]) == {"escaped__lzma__", "data"}


class Still:
    """An environment that looks like this."""

    def __init__(self, picture: object) -> None:
        self.picture = picture

    def render(self) -> object:
        return self.picture


def test_frames_have_everything_that_the_site_needs_and_count_from_one() -> None:
    socket = FakeSocket([])
    flag = np.bool_(True)
    step = send_message(socket, Still(None), 0, np.bool_(False), flag, np.full(60, np.nan), {"a": np.int8(1)}, 0.5)
    assert step == 1
    message = socket.sent[0]
    assert message.pop("image")
    assert message == {
        "type": "broadcast", "terminated": False, "truncated": True, "step": 1, "observations": [None] * 60,
        "actions": {"a": 1}, "rewards": 0.5,
    }  # fmt: skip
    assert send_message(socket, Still(None), step, False, False, {}, {}, 0) == 2


def test_colours_are_those_that_were_drawn() -> None:
    picture = np.zeros((64, 128, 3), np.uint8)
    picture[:, :64, 0] = 255
    socket = FakeSocket([])
    send_message(socket, Still(picture), 0, False, False, {}, {}, 0)
    shown = picture_of(socket.sent[0])
    assert shown.shape == (64, 128, 3)
    np.testing.assert_allclose(shown[:, 8:56].mean(axis=(0, 1)), (255, 0, 0), atol=6)


def test_further_frames_carry_no_number() -> None:
    socket = FakeSocket([])
    send_again(socket, Still(None))
    send_refusal(socket, "no")
    assert [sorted(message) for message in socket.sent] == [
        ["image", "terminated", "truncated", "type"], ["error", "type"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("frame", "pixel"),
    [
        (np.full((2, 3), 7, np.uint8), (7, 7, 7)),
        (np.full((2, 3, 1), 7, np.uint8), (7, 7, 7)),
        (np.full((2, 3, 4), (1, 2, 3, 4), np.uint8), (1, 2, 3)),
        (np.full((2, 3, 3), (-5.0, 100.6, 900.0)), (0, 100, 255)),
        (np.ones((2, 3, 3), bool), (255, 255, 255)),
        ([np.zeros((2, 3, 3), np.uint8), np.full((2, 3, 3), 9, np.uint8)], (9, 9, 9)),
        (None, (128, 128, 128)),
    ],
)
def test_pictures_of_many_kinds(frame: object, pixel: tuple[int, ...]) -> None:
    assert as_rgb(frame)[0, 0].tolist() == list(pixel)


@pytest.mark.parametrize("frame", ["text", np.zeros((2, 3, 2)), np.zeros((0, 3, 3)), np.zeros(5), [1, 2]])
def test_what_is_no_picture_is_refused(frame: object) -> None:
    with pytest.raises(ValueError, match="a picture is"):
        as_rgb(frame)


@pytest.mark.parametrize(
    ("terminated", "truncated", "flags"),
    [
        (False, False, (False, False)),
        (np.bool_(True), 0, (True, False)),
        ({"a": True, "b": False}, {"a": False, "b": False}, (False, False)),
        ({"a": True, "b": False}, {"a": False, "b": True}, (False, True)),
        ({"a": True, "b": True}, {"a": False, "b": False}, (True, False)),
        ({"a": True, "b": True}, {"a": True, "b": True}, (True, True)),
        ({"a": False, "__all__": True}, False, (False, False)),
        ({}, {}, (False, False)),
        (np.array([True, True]), False, (True, False)),
    ],
)
def test_an_episode_is_over_when_it_is_over_for_all(
    terminated: object, truncated: object, flags: tuple[bool, bool]
) -> None:
    result = end_flags(terminated, truncated)
    assert result == flags
    assert all(type(flag) is bool for flag in result)


@pytest.mark.parametrize("text", ["", "nonsense", "[1]", "3", '"x"', "[" * 100_000])
def test_messages_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        loads(text)
