"""The frames of an episode: what pages show, and what the site stores of each step."""

from __future__ import annotations

from typing import Any

from harl.hitl.sharpie_site.messages import dumps, end_flags, sanitize_data
from harl.hitl.sharpie_site.pictures import encode


def frame_message(
    picture: str, step: int, terminated: Any, truncated: Any, obs: Any, actions: Any, reward: Any
) -> dict[str, Any]:
    """One frame that is stored: numbered from 1, with all that the site needs for its record."""
    over = end_flags(terminated, truncated)
    return {
        "type": "broadcast",
        "terminated": over[0],
        "truncated": over[1],
        "step": step,
        "observations": sanitize_data(obs),
        "rewards": sanitize_data(reward),
        "actions": sanitize_data(actions),
        "image": picture,
    }


def send_message(
    websocket: Any, env: Any, step_count: int, terminated: Any, truncated: Any, obs: Any, actions: Any, reward: Any
) -> int:
    """Send the environment's picture and the step that led to it to everybody in the room.

    Args:
        websocket: connection to the room.
        env: has `render()`, see `harl.hitl.sharpie_site.pictures.as_rgb` for what it may return.
        step_count: frames sent so far.
        terminated, truncated: flags, of any kind or by agent.
        obs, actions, reward: of any kind; the site stores them.

    Returns:
        The number of this frame, `step_count + 1`.
    """
    step = int(step_count) + 1
    websocket.send(dumps(frame_message(encode(env.render()), step, terminated, truncated, obs, actions, reward)))
    return step


def send_again(websocket: Any, env: Any) -> None:
    """Show the picture once more, for pages that open late; without a number nothing is stored."""
    websocket.send(dumps({"type": "broadcast", "terminated": False, "truncated": False, "image": encode(env.render())}))


def send_refusal(websocket: Any, text: str) -> None:
    """Tell everybody in the room why there is no episode; pages show the text and close."""
    websocket.send(dumps({"type": "broadcast", "error": sanitize_data(text)}))
