"""The frames of an episode: what pages show, and what the site stores of each step."""

from __future__ import annotations

from typing import Any

from harl.hitl.sharpie_site.messages import dumps, end_flags, members, sanitize_data
from harl.hitl.sharpie_site.pictures import encode


def step_members(obs: Any, actions: Any, rewards: Any) -> str:
    """What is told of a step, as JSON that is made once for all who are told; see `members`."""
    return members(observations=obs, rewards=rewards, actions=actions)


def frame_text(picture: str, number: int, over: tuple[bool, bool], told: str) -> str:
    """One frame that is stored: numbered from 1, with all that the site needs for its record.

    Args:
        picture: as `encode` gives it.
        number: of the frame.
        over: whether the episode was terminated, and truncated.
        told: the step that led to it, as `step_members` gives it.
    """
    start = members(type="broadcast", terminated=over[0], truncated=over[1], step=number)
    return f'{{{start},{told},"image":"{picture}"}}'


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
    over = end_flags(terminated, truncated)
    websocket.send(frame_text(encode(env.render()), step, over, step_members(obs, actions, reward)))
    return step


def send_again(websocket: Any, env: Any) -> None:
    """Show the picture once more, for pages that open late; without a number nothing is stored."""
    websocket.send(dumps({"type": "broadcast", "terminated": False, "truncated": False, "image": encode(env.render())}))


def send_refusal(websocket: Any, text: str) -> None:
    """Tell everybody in the room why there is no episode; pages show the text and close."""
    websocket.send(dumps({"type": "broadcast", "error": sanitize_data(text)}))
