"""`python -m harl.hitl.robot --url LINK`: a scripted person who takes part in a run over its socket.

LINK is the one that the run prints, or ws://host:port/ with --token (or HARL_TOKEN in the environment). Several
environments need one person each: --env 0,1,2,3, with hitl.envs=all. What each of them did is told at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harl.config import ConfigError
from harl.envs.api import FloatArray
from harl.experiment.files import StorageError
from harl.hitl.scripted.client import MakeExpert, Robot, heuristic
from harl.hitl.scripted.heuristics import targets
from harl.hitl.scripted.keys import Action, Keys, space_in_words
from harl.hitl.scripted.scene import Scene, Sight
from harl.hitl.scripted.traits import Expert, Traits
from harl.hitl.scripted.visit import Invitation, RobotError, Summary
from harl.hitl.seats import describe_space

if TYPE_CHECKING:
    from harl.runners import Policy


class Trained:
    """An expert who does what a trained team would do in the situation that is seen.

    What the team needs to see is what the drawing has under `observations` (agent → list of numbers); drawings of the
    particle worlds need not have it, what agents see there is computed from bodies, colours and words.

    Args:
        policy: the team, without memory of its own.
        keys: of each agent.

    Raises:
        RobotError: the team is of other agents, has other actions, or is recurrent.
    """

    def __init__(self, policy: Policy, keys: Mapping[str, Keys]) -> None:
        layout = policy.layout
        if set(layout.agents) != set(keys):
            raise RobotError(f"the checkpoint is of {', '.join(layout.agents)}, the run has {', '.join(keys)}")
        for agent, space in zip(layout.agents, layout.action_spaces, strict=True):
            own, wanted = space_in_words(describe_space(space)), keys[agent].space
            if own != wanted:
                raise RobotError(f"an action of {agent} is {own} in the checkpoint, and {wanted} in the run")
        if policy.team.new_memory(1) is not None:
            raise RobotError("the checkpoint is recurrent: it would have to see every step, which people do not")
        self._policy, self._keys = policy, keys
        self._world = _World(policy) if policy.config.env.name == "mpe" else None
        self._last: tuple[Scene, FloatArray] | None = None

    def act(self, sight: Sight, agent: str) -> Action:
        """See `Expert`."""
        layout = self._policy.layout
        index = layout.agents.index(agent)
        action = self._joint(sight.scene)[index, : layout.action_dims[index]].tolist()
        discrete = self._keys[agent].kind == "discrete"
        return int(action[0]) if discrete else [float(number) for number in action]

    def mistaken(self, before: Sight | None, now: Sight, agent: str) -> bool:
        """Whether the agent did something else."""
        return not self._keys[agent].same(now.actions[agent], self.act(now if before is None else before, agent))

    def _joint(self, scene: Scene) -> FloatArray:
        """(A, action_dim) what the team does; computed once for all agents."""
        if self._last is None or self._last[0] is not scene:
            acted = self._policy.act(self._observations(scene), deterministic=True)
            assert isinstance(acted, np.ndarray)
            self._last = scene, acted
        return self._last[1]

    def _observations(self, scene: Scene) -> FloatArray:
        told = scene.raw.get("observations")
        layout = self._policy.layout
        if told is not None:
            seen = np.zeros((layout.num_agents, *layout.obs_shape), np.float32)
            for i, agent in enumerate(layout.agents):
                seen[i, : layout.obs_dims[i]] = told[agent]
            return seen
        if self._world is None:
            raise RobotError(
                f"the drawings of {self._policy.config.env.name} do not say what agents see: let VectorEnv.scene give "
                "it under observations, or use --policy heuristic"
            )
        return self._world.observations(scene)


class _World:
    """A particle world of one's own, to see in it what agents see in a drawing of another."""

    def __init__(self, policy: Policy) -> None:
        from harl.envs.mpe import MPEVectorEnv
        from harl.envs.mpe.scenarios import SCENARIOS
        from harl.registry import make_envs

        envs = make_envs(policy.config.env, 1)
        assert isinstance(envs, MPEVectorEnv)
        envs.reset([0])
        self._envs, self._scenario = envs, envs.scenario
        walkers = getattr(SCENARIOS[envs.scenario], "walkers", [])
        agents = envs.layout.agents
        self._walkers = [agents[i] for i in np.arange(len(agents))[walkers]] if walkers else []

    def observations(self, scene: Scene) -> FloatArray:
        """(A, obs_dim)."""
        state, agents = self._envs.get_state(), self._envs.layout.agents
        for i, name in enumerate(agents):
            state["agent_positions"][0, i] = scene.agents[name].place
            state["agent_velocities"][0, i] = scene.agents[name].velocity
            said = scene.words.get(name, "_")[:1]
            state["speech"][0, i] = 0.0
            if said != "_":
                state["speech"][0, i, ord(said) - ord("A")] = 1.0
        for i, mark in enumerate(scene.landmarks):
            state["landmark_positions"][0, i] = mark.place
        goals = targets(self._scenario, scene)
        for i, walker in enumerate(self._walkers):
            state["goals"][0, i] = goals[walker]
        self._envs.set_state(state)
        seen: FloatArray = self._envs.observe().obs[0]
        return seen


def checkpoint(run: str | Path, which: str = "best") -> MakeExpert:
    """The expert of a run folder, from its checkpoint `which` (best or latest); raises `StorageError` for none."""
    import harl

    policy = harl.load(run, which)

    def make(welcome: Mapping[str, Any], keys: Mapping[str, Keys]) -> Expert:
        return Trained(policy, keys)

    return make


async def take_part(people: Sequence[Robot], seconds: float | None = None) -> list[Summary]:
    """Let several people take part at the same time; raises `RobotError` where one of them cannot."""
    return list(await asyncio.gather(*(person.run(seconds) for person in people)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Take part; exit code 1 where that is not possible, 2 for a wrong command."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        make_expert: MakeExpert = heuristic
        if options.policy[0] == "checkpoint" and len(options.policy) == 2:
            if options.anticipate:
                parser.error("--anticipate needs --policy heuristic: a checkpoint does not know what actions lead to")
            make_expert = checkpoint(options.policy[1])
        elif options.policy != ["heuristic"]:
            parser.error("--policy takes heuristic, or checkpoint and a run folder")
        people = [
            Robot(_invitation(options, env), _traits(options), make_expert, options.seed + number)
            for number, env in enumerate(options.env)
        ]
        summaries = asyncio.run(take_part(people, options.seconds))
    except (RobotError, ConfigError, StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    for env, summary in zip(options.env, summaries, strict=True):
        print(f"environment {'shown' if env is None else env}: {summary}")
        for text, count in summary.errors.items():
            print(f"  {count} x {text}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    own = Traits()
    parser = argparse.ArgumentParser(
        prog="python -m harl.hitl.robot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True, help="link of the run, or ws://host:port/")
    parser.add_argument("--token", default=os.environ.get("HARL_TOKEN", ""), help="where the link has none")
    parser.add_argument("--name", default="robot", help="pseudonym")
    parser.add_argument("--consent", help="version of the terms that are agreed to")
    parser.add_argument(
        "--env", type=_environments, default=[None], metavar="0,1", help="environments, one person each"
    )
    parser.add_argument("--agents", type=_names, metavar="A,B", help="whom to drive (default: all)")
    parser.add_argument("--policy", nargs="+", default=["heuristic"], metavar="", help="heuristic | checkpoint RUN")
    parser.add_argument("--gate", choices=("always", "random", "error"), default=own.gate, help="when to take over")
    parser.add_argument("--together", action="store_true", help="take over all agents when one is to be taken over")
    parser.add_argument("--threshold", type=_share, default=own.threshold, help="gate error: share of mistakes")
    parser.add_argument("--budget", type=_share, help="most steps driven, as a share of all steps of all agents")
    parser.add_argument("--segment", type=_count, default=own.segment, help="steps of one takeover")
    parser.add_argument("--flip", type=_share, default=own.flip, help="share of decisions of the gate turned round")
    parser.add_argument("--delay-steps", type=_range, default=own.delay_steps, metavar="2..4", help="reaction time")
    parser.add_argument(
        "--anticipate", action="store_true", help="act on where bodies will be by then (of physics=mpe2)"
    )
    parser.add_argument("--noise", type=_share, default=own.noise, help="share of random actions")
    parser.add_argument("--suboptimal", action="store_true", help="half of the actions are random")
    parser.add_argument("--feedback", action="store_true", help="praise and blame, which needs a trainer's link")
    parser.add_argument("--fps", type=_fps, default=10_000.0, help="most frames a second to look at")
    parser.add_argument("--seconds", type=_seconds, help="leave after this time (default: when the run ends)")
    parser.add_argument("--seed", type=_seed, default=0)
    return parser


def _invitation(options: argparse.Namespace, env: int | None) -> Invitation:
    name = options.name if len(options.env) == 1 else f"{options.name}-{env}"
    return Invitation(
        url=options.url,
        token=options.token,
        name=name,
        env=env,
        agents=options.agents,
        fps=options.fps,
        consent=options.consent,
    )


def _traits(options: argparse.Namespace) -> Traits:
    return Traits(
        delay_steps=options.delay_steps,
        anticipates=options.anticipate,
        noise=options.noise,
        suboptimal=options.suboptimal,
        budget=options.budget,
        gate=options.gate,
        together=options.together,
        threshold=options.threshold,
        segment=options.segment,
        flip=options.flip,
        feedback=options.feedback,
    )


def _number(text: str, what: str, allowed: Callable[[float], bool]) -> float:
    """A number that is allowed; `what` says in words which are."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not allowed(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def _share(text: str) -> float:
    return _number(text, "a number from 0 to 1", lambda value: 0 <= value <= 1)


def _fps(text: str) -> float:
    least, most = 0.1, 10_000
    return _number(text, f"a number of frames from {least} to {most}", lambda value: least <= value <= most)


def _seconds(text: str) -> float:
    return _number(text, "a number of seconds above 0", lambda value: value > 0)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
    return value


def _count(text: str) -> int:
    return _whole(text, 1)


def _seed(text: str) -> int:
    return _whole(text, 0)


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("..")
    try:
        first, last = int(low), int(high or low)
    except ValueError:
        first, last = 1, 0
    if not 0 <= first <= last:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps, as 3, and no range of them, as 2..4")
    return first, last


def _names(text: str) -> tuple[str, ...]:
    return _once_each(text, [name.strip() for name in text.split(",")], "names of agents, as agent_0,agent_1")


def _environments(text: str) -> list[int]:
    what = "indices of environments, as 0,1"
    names = _once_each(text, [name.strip() for name in text.split(",")], what)
    if not all(name.isdecimal() for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} has to be {what}")
    return [int(name) for name in _once_each(text, [str(int(name)) for name in names], what)]


def _once_each(text: str, names: Sequence[str], what: str) -> tuple[str, ...]:
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has to be {what}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise argparse.ArgumentTypeError(f"{text!r} names {twice} twice")
    return tuple(names)


if __name__ == "__main__":
    sys.exit(main())
