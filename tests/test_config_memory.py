"""Settings of memory that make no sense together are refused; case CFG-12."""

import itertools

import pytest

from harl.config import ConfigError, compose, to_config


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
        to_config(compose([f"train.episode_length={steps}", f"model.data_chunk_length={chunk}"]))
