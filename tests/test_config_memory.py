"""Settings of memory that make no sense together are refused; case CFG-12."""

import itertools

import pytest

from harl.config import ALGO_SCHEMAS, ConfigError, ModelConfig, check_overrides, compose, to_config

KEYS = (
    "use_recurrent_policy",
    "use_naive_recurrent_policy",
    "recurrent_n",
    "data_chunk_length",
    "cnn_kernel_size",
    "cnn_stride",
)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.use_recurrent_policy=true", "model.use_naive_recurrent_policy=true"],
            "exclude each other",
        ),
        (
            ["model.use_recurrent_policy=true", "train.episode_length=200", "model.data_chunk_length=30"],
            r"must divide train.episode_length=200 into at least two chunks; nearest: 25 and 40",
        ),
        (
            ["model.use_recurrent_policy=true", "train.episode_length=10", "model.data_chunk_length=10"],
            r"nearest: 5; model.use_naive",
        ),
        (
            ["model.use_recurrent_policy=true", "train.episode_length=1", "model.data_chunk_length=1"],
            r"into at least two chunks; model.use_naive",
        ),
        (
            ["model.use_naive_recurrent_policy=true", "algo.actor_num_mini_batch=21"],
            r"must be at most 20, the sequences of a rollout \(train.n_rollout_threads=20\)",
        ),
        (
            ["model.use_recurrent_policy=true", "algo.critic_num_mini_batch=401"],
            r"must be at most 400, the chunks of a rollout",
        ),
    ],
)
def test_settings_that_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        to_config(compose(overrides))


def test_chunk_length_without_memory_is_not_looked_at() -> None:
    for steps, chunk in itertools.product([1, 7], [10, 200]):
        config = to_config(compose([f"train.episode_length={steps}", f"model.data_chunk_length={chunk}"]))
        assert (config.algo.train.episode_length, config.algo.model.data_chunk_length) == (steps, chunk)


@pytest.mark.parametrize("algo", ALGO_SCHEMAS)
def test_off_policy_algorithms_refuse_memory_and_convolutions_with_the_reason(algo):
    errors = check_overrides([f"algo={algo}", *(f"model.{key}=1" for key in KEYS)])
    if ALGO_SCHEMAS[algo].model is ModelConfig:
        assert errors == []
        return
    assert len(errors) == len(KEYS)
    for key, error in zip(KEYS, errors, strict=True):
        assert error.startswith(f"model.{key} is not taken: ")
        assert ("vectors" if key.startswith("cnn") else "without memory") in error
        assert "happo" in error
