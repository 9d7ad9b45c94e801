"""Check an environment of your own: `python -m harl.envs.check my_pkg.my_module:make_env size=5`.

Builds it, plays random episodes, and says in plain words what is right, what is worth a look and what is wrong; the
exit status is 1 if anything is wrong. Nothing is learned and nothing is written.
"""

from __future__ import annotations

import argparse
import ast
import sys
from typing import Any

import numpy as np

from harl.envs.api import EnvStep, FloatArray
from harl.envs.check_play import Findings, Play, random_row
from harl.envs.entry_point import EnvFactory, scenario_name
from harl.envs.parallel import ParallelVectorEnv
from harl.envs.parallel_codec import ActionCodec
from harl.envs.parallel_convert import to_parallel

DETERMINISM_STEPS = 200
WORDS = {"true": True, "false": False, "null": None, "none": None}


def check_environment(entry_point: str, kwargs: dict[str, Any], episodes: int = 3, seed: int = 1) -> Findings:
    """Run all checks and return what was found; a wrong environment is reported, not raised."""
    findings = Findings()
    factory = EnvFactory(entry_point, kwargs)
    env = None
    with findings.collecting("construction"):
        factory.check()
        env = to_parallel(factory())
        findings.right(f"{entry_point} is built")
    if env is None:
        return findings
    play = Play(env, findings, np.random.default_rng(seed))
    if play.read_spaces():
        play.episodes(episodes, seed)
    with findings.collecting("close"):
        env.close()
    if findings.problems:
        findings.note("vector steps and determinism were not checked: mend what is wrong first")
    else:
        with findings.collecting("determinism"):
            check_determinism(factory, findings, seed)
    play.summarise()
    return findings


def check_determinism(factory: EnvFactory, findings: Findings, seed: int) -> None:
    """Two copies with equal seeds and equal actions must stay equal, through ends and resets, for 200 steps."""
    scenario = scenario_name(factory.entry_point)
    one, two = (ParallelVectorEnv(factory, 1, scenario=scenario) for _ in range(2))
    try:
        rng = np.random.default_rng(seed)
        first = one.reset([seed])
        start = first.obs.copy()
        starts = [start]
        difference = _difference(first, two.reset([seed]))
        view, step = first, 0
        while difference is None and step < DETERMINISM_STEPS:
            step += 1
            actions = random_actions(one, view, rng)
            view = one.step(actions)
            difference = _difference(view, two.step(actions))
            if view.ended[0]:
                starts.append(view.obs.copy())
        if difference is not None:
            findings.wrong(
                f"two copies with the same seed and actions differ in {difference}; draw all random numbers from a "
                "generator that reset(seed) sets, and keep it when seed is None",
                f"step {step} of {DETERMINISM_STEPS}",
            )
            return
        if not np.array_equal(one.reset([seed]).obs, start, equal_nan=True):
            findings.wrong("a second reset with the same seed begins differently; reset(seed) must set everything")
            return
        findings.right(f"deterministic: two copies with one seed are equal over {DETERMINISM_STEPS} steps and resets")
        if np.array_equal(one.reset([seed + 1]).obs, start, equal_nan=True):
            findings.note("the first observation does not depend on the seed (right if the start is fixed)")
        elif len(starts) > 1 and all(np.array_equal(start, other) for other in starts):
            findings.wrong("all episodes begin alike although the seed changes the start; seed only when asked to")
    finally:
        one.close()
        two.close()


def random_actions(env: ParallelVectorEnv, view: EnvStep, rng: np.random.Generator) -> FloatArray:
    """Random legal actions (N, A, action_dim) for what `view` allows."""
    layout = env.layout
    codecs = [ActionCodec(name, space) for name, space in zip(layout.agents, layout.action_spaces, strict=True)]
    masks = view.available_actions
    rows = [
        random_row(codec, None if masks is None else masks[n, i], layout.action_dim, rng)
        for n in range(env.num_envs)
        for i, codec in enumerate(codecs)
    ]
    return np.stack(rows).reshape(env.num_envs, layout.num_agents, layout.action_dim)


def parse_arguments(pairs: list[str]) -> dict[str, Any]:
    """Keyword arguments from "key=value" texts: Python literals, true/false/null, and anything else as text.

    Raises:
        ValueError: a text without "=" or with an empty key.
    """
    kwargs = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{pair!r} must have the form key=value, as size=5")
        try:
            kwargs[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            kwargs[key] = WORDS.get(text.lower(), text)
    return kwargs


def report(findings: Findings) -> str:
    """The findings as lines of text, what is wrong last, where it is seen."""
    order = {Findings.RIGHT: 0, Findings.NOTE: 1, Findings.WRONG: 2}
    lines = [f"        {line}" for line in findings.summary]
    for message, (kind, place) in sorted(findings.lines.items(), key=lambda item: order[item[1][0]]):
        lines.append(f"{kind:7} {message}{f' ({place})' if place else ''}")
    count = len(findings.problems)
    lines.append(f"{count} problem{'s' if count != 1 else ''} found" if count else "no problem found")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harl.envs.check", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("entry_point", help="package.module:attribute that builds a ParallelEnv")
    parser.add_argument("kwargs", nargs="*", metavar="key=value", help="keyword arguments of the factory")
    parser.add_argument("--episodes", type=int, default=3, help="random episodes to play (3)")
    parser.add_argument("--seed", type=int, default=1, help="seed of environment and actions (1)")
    options = parser.parse_args(arguments)
    if options.episodes < 1:
        parser.error(f"--episodes is {options.episodes}, it must be at least 1")
    try:
        kwargs = parse_arguments(options.kwargs)
    except ValueError as error:
        parser.error(str(error))
    findings = check_environment(options.entry_point, kwargs, options.episodes, options.seed)
    print(report(findings))
    return 1 if findings.problems else 0


def _difference(one: EnvStep, two: EnvStep) -> str | None:
    """The name of the first array in which two records differ, or None."""
    names = ("obs", "share_obs", "available_actions", "active", "rewards", "terminated", "truncated", "final_obs")
    for name in names:
        first, second = getattr(one, name), getattr(two, name)
        if (first is None) != (second is None):
            return name
        if first is not None and not np.array_equal(first, second, equal_nan=True):
            return name
    return None


if __name__ == "__main__":
    sys.exit(main())
