"""Combinations of values that make no sense together, each with the reason.

What depends on the environment's spaces is checked where they are known, not here.
"""

from __future__ import annotations

from collections.abc import Iterator

from harl.config.algo_schema import (
    AnyAlgoConfig,
    AnyModelConfig,
    AnyTrainConfig,
    EvalConfig,
    MinibatchConfig,
    ModelConfig,
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
    model: AnyModelConfig | None,
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
        if isinstance(train, TrainConfig) and isinstance(model, ModelConfig) and isinstance(algo, OnPolicyAlgoConfig):
            errors += _check_minibatches(train, model, algo)
        if isinstance(train, OffPolicyTrainConfig) and isinstance(algo, OffPolicyAlgoConfig):
            errors += _check_replay(train, algo)
    if isinstance(train, TrainConfig) and isinstance(model, ModelConfig):
        errors += _check_memory(train, model)
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


def _check_memory(train: TrainConfig, model: ModelConfig) -> Iterator[str]:
    if model.use_recurrent_policy and model.use_naive_recurrent_policy:
        yield (
            "model.use_recurrent_policy=true and model.use_naive_recurrent_policy=true exclude each other: the first "
            "learns from chunks, the second from whole sequences; set one of them to false"
        )
        return
    length, steps = model.data_chunk_length, train.episode_length
    if not model.use_recurrent_policy or (steps % length == 0 and steps >= 2 * length):
        return
    divisors = [divisor for divisor in range(1, steps // 2 + 1) if steps % divisor == 0]
    below = [divisor for divisor in divisors if divisor < length][-1:]
    above = [divisor for divisor in divisors if divisor > length][:1]
    nearest = " and ".join(str(divisor) for divisor in below + above)
    yield (
        f"model.data_chunk_length={length}: must divide train.episode_length={steps} into at least two chunks; "
        + (f"nearest: {nearest}; " if nearest else "")
        + "model.use_naive_recurrent_policy=true learns from sequences that are not cut"
    )


def _check_minibatches(train: TrainConfig, model: ModelConfig, algo: OnPolicyAlgoConfig) -> Iterator[str]:
    rows, what = train.episode_length * train.n_rollout_threads, "rows"
    made_of = f"train.episode_length={train.episode_length} * train.n_rollout_threads={train.n_rollout_threads}"
    if model.use_naive_recurrent_policy:
        rows, what = train.n_rollout_threads, "sequences"
        made_of = f"train.n_rollout_threads={rows}"
    elif model.use_recurrent_policy:
        rows, what = rows // model.data_chunk_length, "chunks"
        made_of += f" / model.data_chunk_length={model.data_chunk_length}"
    slices = {"critic_num_mini_batch": algo.critic_num_mini_batch}
    if isinstance(algo, MinibatchConfig):
        slices["actor_num_mini_batch"] = algo.actor_num_mini_batch
    for name, count in slices.items():
        if count > rows:
            yield (f"algo.{name}={count}: must be at most {rows}, the {what} of a rollout ({made_of})")


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
