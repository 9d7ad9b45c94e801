"""Clients in a process of their own, for `harl.bench.people`: they watch, or press keys and time what comes of it."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from harl.hitl.network.frames import unpack
from harl.hitl.network.protocol import SUBPROTOCOL

TAP_EVERY_S = 0.05
"""Between two presses: held states are repeated in between, as the page does."""


async def enter(url: str, token: str, role: str, show: str, fps: float) -> ClientConnection:
    """A connection that has said hello and looks at environment 0."""
    socket = await connect(url, subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=None, compression=None)
    hello = {"v": 1, "type": "hello", "token": token, "client": "bench", "want_role": role, "device": "script"}
    await socket.send(json.dumps(hello))
    while json.loads(await socket.recv())["type"] != "welcome":
        pass
    view = {"v": 1, "type": "subscribe", "env": 0, "mode": show, "fps": fps, "max_px": 512}
    await socket.send(json.dumps(view))
    return socket


async def watch(socket: ClientConnection, frames: list[int]) -> None:
    """Count the frames that come, until the server says goodbye."""
    async for message in socket:
        frames[0] += isinstance(message, bytes)


async def press_keys(url: str, token: str, show: str, fps: float, presses: int) -> dict[str, Any]:
    """Drive the first agent; milliseconds from each press to the first frame that shows what it did."""
    socket = await enter(url, token, "controller", show, fps)
    asked = {"v": 1, "type": "control", "op": "request", "agent": "agent_0", "mode": "toggle"}
    sent: dict[int, float] = {}
    shown: list[float] = []
    applied: list[float] = []
    seq, seen, last_press, action = 0, (0, 0), 0.0, 0
    async for message in socket:
        now = time.perf_counter()
        if isinstance(message, str):
            data = json.loads(message)
            if data["type"] == "ack" and data["status"] == "applied" and data["seq"] in sent:
                applied.append((now - sent[data["seq"]]) * 1000)
            if data["type"] == "control" and data["state"] == "expired":
                await socket.send(json.dumps(asked))
            continue
        frame = unpack(message)
        seen = (frame.episode, frame.step)
        number = frame.meta["applied"].get("agent_0", -1)
        shown += [(now - sent.pop(known)) * 1000 for known in list(sent) if known <= number]
        if len(shown) >= presses:
            break
        if frame.meta["driver"].get("agent_0") is None:
            await socket.send(json.dumps(asked))
        if now - last_press >= TAP_EVERY_S:
            seq, last_press, action = seq + 1, now, (action + 1) % 5
            place = {"ep": seen[0], "step": seen[1]}
            state = {"agent": "agent_0", "seq": seq, "seen": place, "action": action, "held": True, "ttl_ms": 500}
            sent.clear()  # of those that came too late for their episode there is no answer
            sent[seq] = time.perf_counter()
            await socket.send(json.dumps({"v": 1, "type": "input", **state}))
    await socket.close()
    return {"shown": _quantiles(shown), "applied": _quantiles(applied), "presses": len(shown)}


def _quantiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


async def _main(url: str, token: str, count: int, show: str, fps: float, presses: int) -> None:
    sockets = [await enter(url, token, "observer", show, fps) for _ in range(count)]
    frames = [0]
    tasks = [asyncio.create_task(watch(socket, frames)) for socket in sockets]
    print("ready", flush=True)
    if presses:
        print(json.dumps(await press_keys(url, token, show, fps, presses)), flush=True)
    else:
        await asyncio.to_thread(sys.stdin.read)  # until the bench closes it
        print(json.dumps({"frames": frames[0]}), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], float(sys.argv[5]), int(sys.argv[6])))
