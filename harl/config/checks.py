"""Combinations of values that make no sense together, each with the reason.

What depends on the environment's spaces is checked where they are known, not here.
"""

from __future__ import annotations

from collections.abc import Iterator

from harl.config.algo_schema import (
    AnyAlgoConfig,
    AnyTrainConfig,
    EvalConfig,
    MinibatchConfig,
    OnPolicyAlgoConfig,
    TrainConfig,
)
from harl.config.env_schema import EnvArgs, MPEConfig
from harl.config.off_policy_schema import OffPolicyAlgoConfig, OffPolicyTrainConfig
from harl.config.run_schema import RunArgs

_SCENARIO_OPTIONS = {
    "local_ratio": ("simple_spread", "simple_reference"),
    "N": ("simple_spread",),
}


def cross_check(
    run: RunArgs | None,
    train: AnyTrainConfig | None,
    algo: AnyAlgoConfig | None,
    evaluation: EvalConfig | None,
    env: EnvArgs | None,
) -> list[str]:
    """Every combination that is refused; a section that is wrong in itself comes as None and is left out."""
    errors: list[str] = []
    if run:
        errors += _check_run(run)
    if algo:
        errors += _check_algo(algo)
        if isinstance(train, TrainConfig) and isinstance(algo, OnPolicyAlgoConfig):
            errors += _check_minibatches(train, algo)
        if isinstance(train, OffPolicyTrainConfig) and isinstance(algo, OffPolicyAlgoConfig):
            errors += _check_replay(train, algo)
    if evaluation:
        errors += _check_eval(evaluation)
    if env:
        errors += _check_env(env)
    return errors


def _check_run(run: RunArgs) -> Iterator[str]:
    if run.resume is not None and run.init_from is not None:
        yield (
            f"resume={run.resume} and init_from={run.init_from} exclude each other: "
            "resume goes on with a run and its own weights, init_from starts a new one"
        )


_TOGETHER = {"happo": "mappo", "haddpg": "maddpg", "hatd3": "matd3"}
"""Algorithms that update agents one after the other, and what updates them together otherwise alike."""


def _check_algo(algo: AnyAlgoConfig) -> Iterator[str]:
    if algo.name.startswith("ha") and algo.share_param:
        together = _TOGETHER.get(algo.name, "mappo" if isinstance(algo, OnPolicyAlgoConfig) else None)
        instead = f"use algo={together}" if together else "leave it false"
        yield (
            f"algo.share_param=true does not go with algo={algo.name}: updating agents one after the other has no "
            f"meaning for one network; {instead}"
        )
    if algo.name in _TOGETHER.values() and algo.fixed_order:
        sequential = next(name for name, other in _TOGETHER.items() if other == algo.name)
        yield (
            f"algo.fixed_order=true does not go with algo={algo.name}: agents are updated together, in no order; "
            f"leave it false, or use algo={sequential}"
        )


def _check_replay(train: OffPolicyTrainConfig, algo: OffPolicyAlgoConfig) -> Iterator[str]:
    if algo.buffer_size < train.n_rollout_threads:
        yield (
            f"algo.buffer_size={algo.buffer_size}: must be at least train.n_rollout_threads={train.n_rollout_threads}, "
            "the transitions of one vector step"
        )
    if algo.buffer_size < algo.batch_size:
        yield (
            f"algo.buffer_size={algo.buffer_size}: must be at least algo.batch_size={algo.batch_size}, "
            "the transitions of one update"
        )


def _check_minibatches(train: TrainConfig, algo: OnPolicyAlgoConfig) -> Iterator[str]:
    rows = train.episode_length * train.n_rollout_threads
    slices = {"critic_num_mini_batch": algo.critic_num_mini_batch}
    if isinstance(algo, MinibatchConfig):
        slices["actor_num_mini_batch"] = algo.actor_num_mini_batch
    for name, count in slices.items():
        if count > rows:
            yield (
                f"algo.{name}={count}: must be at most {rows}, the rows of a rollout "
                f"(train.episode_length={train.episode_length} * train.n_rollout_threads={train.n_rollout_threads})"
            )


def _check_eval(evaluation: EvalConfig) -> Iterator[str]:
    episodes, threads = evaluation.eval_episodes, evaluation.n_eval_rollout_threads
    if episodes > threads and episodes % threads:
        below = episodes - episodes % threads
        yield (
            f"eval.eval_episodes={episodes}: must be a multiple of eval.n_eval_rollout_threads={threads}, so that each "
            f"environment plays as many; nearest are {below} and {below + threads}"
        )


def _check_env(env: EnvArgs) -> Iterator[str]:
    if isinstance(env, MPEConfig):
        for name, scenarios in _SCENARIO_OPTIONS.items():
            value = getattr(env.kwargs, name)
            if value is not None and env.scenario not in scenarios:
                yield (
                    f"env.kwargs.{name}={value}: env.scenario={env.scenario} has no such option; "
                    f"leave it null, or choose {' or '.join(scenarios)}"
                )
    elif env.workers:
        yield f"env.workers={env.workers}: must be 0; environments are stepped in this process, there are no workers"
