"""Frames: their form on the wire, and pictures."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

from harl.hitl.network.frames import (
    MAX_FRAME,
    Codec,
    Frame,
    encode_picture,
    encode_scene,
    jpeg,
    own_picture,
    png,
    unpack,
)
from harl.hitl.network.protocol import ProtocolError

RAMP = np.linspace(0, 255, 300 * 400 * 3).reshape(300, 400, 3).astype(np.uint8)


def frame(payloads: dict[str | int, tuple[Codec, bytes]], **changes: Any) -> Frame:
    return Frame(**{"env": 3, "episode": 7, "step": 9, "meta": {"sps": 1.5}, "payloads": payloads, **changes})


def test_a_frame_is_laid_out_as_the_protocol_says() -> None:
    data = frame({64: (Codec.PNG, b"picture")}, t_server=12.25).wire("jpeg", 64)
    assert data == (
        bytes([1, 2, 0, 3, 0, 0, 0, 7, 0, 0, 0, 9])
        + struct.pack(">d", 12.25)
        + b"\x00\x0b"
        + b'{"sps":1.5}'
        + b"picture"
    )


def test_what_is_packed_is_unpacked() -> None:
    meta = {"reward": {"a": np.float32(0.5), "b": float("nan")}, "name": "Ж"}
    data = frame({"state": (Codec.STATE, b"{}")}, meta=meta, t_server=3.0, episode=2**32 + 1).wire("state", 0)
    assert isinstance(data, bytes)
    assert unpack(data) == (Codec.STATE, 3, 1, 9, 3.0, {"reward": {"a": 0.5, "b": None}, "name": "Ж"}, b"{}")


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01" * 10, b"\x02" + b"\x00" * 21, bytes([1, 9]) + bytes(18) + b"\x00\x02{}",
     bytes([1, 1]) + bytes(18) + b"\x00\x09{}", bytes([1, 1]) + bytes(18) + b"\x00\x02{x"],
)  # fmt: skip
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        unpack(data)
    assert caught.value.code == "bad_frame"


@pytest.mark.parametrize(("asked", "got"), [(16, b"128"), (128, b"128"), (200, b"256"), (512, b"256")])
def test_the_smallest_picture_that_is_large_enough_is_taken(asked: int, got: bytes) -> None:
    data = frame({256: (Codec.JPEG, b"256"), 128: (Codec.JPEG, b"128")}).wire("jpeg", asked)
    assert isinstance(data, bytes)
    assert unpack(data).payload == got


@pytest.mark.parametrize("show", ["jpeg", "state", "none"])
def test_where_there_is_no_picture_the_numbers_come_alone(show: Any) -> None:
    told = json.loads(frame({}).wire(show, 64))
    assert told == {"v": 1, "type": "tick", "env": 3, "ep": 7, "step": 9, "sps": 1.5}


def test_a_frame_is_made_once_for_all() -> None:
    made = frame({64: (Codec.JPEG, b"x" * 1000), "state": (Codec.STATE, b"{}")})
    assert made.wire("jpeg", 64) is made.wire("jpeg", 32)
    assert made.wire("none", 64) is made.wire("none", 32)


def test_meta_data_of_a_thousand_agents_gives_way() -> None:
    meta = {"env_steps": 5, "done": False, "actions": {f"agent_{k}": [0.123456] * 8 for k in range(1000)}}
    data = frame({64: (Codec.JPEG, b"x")}, meta=meta).wire("jpeg", 64)
    assert isinstance(data, bytes)
    assert (unpack(data).meta, unpack(data).payload) == ({"env_steps": 5, "done": False}, b"x")


@pytest.mark.parametrize(("max_px", "size"), [(512, (400, 300)), (200, (200, 150)), (16, (16, 12))])
def test_jpeg_keeps_the_picture_and_the_limit(max_px: int, size: tuple[int, int]) -> None:
    image = Image.open(io.BytesIO(jpeg(RAMP, max_px)))
    assert (image.format, image.size) == ("JPEG", size)
    expected = np.asarray(Image.fromarray(RAMP).resize(size), np.float64)
    assert np.abs(np.asarray(image, np.float64) - expected).mean() < 4


def test_small_worlds_keep_every_pixel() -> None:
    picture = np.random.default_rng(1).integers(0, 256, (100, 128, 3)).astype(np.uint8)
    codec, data = encode_picture(picture[:, ::-1], 512)  # a view with negative strides
    assert (codec, data) == (Codec.PNG, png(picture[:, ::-1]))
    assert (np.asarray(Image.open(io.BytesIO(data))) == picture[:, ::-1]).all()
    assert encode_picture(picture, 64)[0] is Codec.JPEG
    assert encode_picture(RAMP, 128)[0] is Codec.JPEG


def test_no_picture_is_larger_than_clients_take_WS01() -> None:
    noise = np.random.default_rng(2).integers(0, 256, (2048, 2048, 3)).astype(np.uint8)
    codec, data = encode_picture(noise, 2048)
    assert codec is Codec.JPEG
    assert len(data) <= MAX_FRAME < 2**20


@pytest.mark.parametrize("picture", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3)),
                                     np.zeros((0, 4, 3), np.uint8)])  # fmt: skip
def test_what_is_no_picture_is_refused(picture: Any) -> None:
    for refuses in (lambda: encode_picture(picture, 512), lambda: own_picture(picture)):
        with pytest.raises(ValueError, match="a picture is"):
            refuses()


def test_a_picture_is_encoded_when_it_is_sent_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def counting(picture: Any, max_px: int) -> tuple[Codec, bytes]:
        encoded.append(max_px)
        return encode_picture(picture, max_px)

    monkeypatch.setattr("harl.hitl.network.frames.encode_picture", counting)
    made = frame({256: RAMP, 512: RAMP})
    assert encoded == []
    data = made.wire("jpeg", 256)
    assert isinstance(data, bytes)
    assert unpack(data)[0] is Codec.JPEG
    assert unpack(data).payload == encode_picture(RAMP, 256)[1]
    assert made.wire("jpeg", 200) is data
    assert encoded == [256]


def test_a_picture_that_waits_is_nobody_elses() -> None:
    """Environments may draw the next one into the same array."""
    drawn = RAMP.copy()
    kept = own_picture(drawn)
    drawn[:] = 0
    np.testing.assert_array_equal(kept, RAMP)
    drawn.flags.writeable = False
    assert own_picture(drawn) is drawn


def test_a_drawing_is_strict_json() -> None:
    assert encode_scene({"bounds": np.array([0, 1]), "shapes": ({"x": float("inf")},)}) == (
        b'{"bounds":[0,1],"shapes":[{"x":null}]}'
    )
