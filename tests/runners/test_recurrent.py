"""Policies and critics with memory, and with images, in whole updates and whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import harl
from harl.algorithms.actors.on_policy import MinibatchActor
from harl.buffers.rollout import ActorData
from harl.config import ConfigError
from harl.models.distributions import aggregate_ratio
from harl.runners import OnPolicyBaseRunner
from tests.algorithms.rollouts import (
    SPACES,
    all_finite,
    fill,
    hetero_layout,
    learn,
    parameters,
    small_runner,
    team_layout,
)
from tests.runners.runs import (
    QUICK,
    assert_same_run,
    checkpoint,
    evaluations,
    make,
    parts_of,
    resume,
    run,
    stop_at,
    world,
)

CHUNKED = {"model__use_recurrent_policy": True, "model__data_chunk_length": 3}
NAIVE = {"model__use_naive_recurrent_policy": True}
MEMORIES = {"chunked": CHUNKED, "naive": NAIVE}
WAYS = {
    "happo": {},
    "haa2c": {},
    "hatrpo": {},
    "mappo": {"algo__share_param": False},
    "mappo-shared": {"algo__share_param": True},
}


def runner_for(way: str, layout: Any, **overrides: Any) -> OnPolicyBaseRunner:
    return small_runner(layout, way.removesuffix("-shared"), **WAYS[way], **overrides)


def actor_data(runner: OnPolicyBaseRunner) -> list[tuple[Any, ActorData]]:
    """Each actor with what it learns from."""
    zero = torch.zeros(runner.buffer.episode_length, runner.buffer.num_envs, 1)
    data = [runner.buffer.actor_data(i, zero) for i in range(runner.layout.num_agents)]
    if runner.algo.share_param:
        return [(runner.actors[0], ActorData.concatenate(data))]
    return list(zip(runner.actors, data, strict=True))


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SPACES)
def test_G_1_and_D_02_ratio_is_one_before_the_first_update(kind: str, way: str, memory: str) -> None:
    """Of the whole sequences, for the factor, and of what the actor learns from."""
    runner = runner_for(way, team_layout(kind, has_masks=kind != "box"), **MEMORIES[memory], model__recurrent_n=2)
    fill(runner)
    for actor, data in actor_data(runner):
        for rows in (data, data.chunks()):
            ratio = aggregate_ratio(actor.log_probs(rows) - rows.log_probs, "prod")
            assert ratio.numel() == data.weights.numel()
            torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=2e-5)


def test_agents_that_differ_have_ratio_one() -> None:
    runner = small_runner(hetero_layout(), **CHUNKED)
    fill(runner)
    for actor, data in actor_data(runner):
        rows = data.chunks()
        ratio = aggregate_ratio(actor.log_probs(rows) - rows.log_probs, "prod")
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=2e-5)
    learn(runner)
    assert all_finite(runner)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("way", WAYS)
def test_chunks_are_what_minibatch_actors_learn_from_and_sequences_what_trust_regions_do(way: str, memory: str) -> None:
    runner = runner_for(way, team_layout(), **MEMORIES[memory])
    fill(runner)
    actor, data = actor_data(runner)[0]
    seen: list[tuple[int, ...]] = []
    terms = actor.terms

    def noting(rows: ActorData) -> Any:
        seen.append(tuple(rows.obs.shape[:2]))
        return terms(rows)

    actor.terms = noting
    data.advantages = torch.randn_like(data.advantages)
    actor.train(data)
    sequences = 12 if way == "mappo-shared" else 4
    cut = isinstance(actor, MinibatchActor) and memory == "chunked"
    assert set(seen) == {(2 * sequences, 3) if cut else (sequences, 6)}


@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_values_are_those_of_the_critic_step_by_step(state_type: str) -> None:
    """Also those of the last states of episodes, which are judged with what was remembered of that episode."""
    runner = small_runner(team_layout(state_type=state_type), **CHUNKED)
    fill(runner)
    buffer, network = runner.buffer, runner.critic.network
    assert buffer.masks is not None
    assert buffer.critic_hidden is not None
    each = 3 if state_type == "FP" else 1
    states = buffer.share_obs.reshape(7, 4 * each, 6)
    finals = torch.randn(2, each, 6)
    buffer.final_share_obs = [
        (1, torch.tensor([2]), finals[:1] if each > 1 else finals[:1, 0]),
        (4, torch.tensor([0]), finals[1:] if each > 1 else finals[1:, 0]),
    ]
    hidden, after = buffer.critic_hidden[0].reshape(4 * each, 1, 16).clone(), []
    before = []
    with torch.no_grad():
        for t in range(7):
            before.append(hidden)
            masks = buffer.masks[t].repeat_interleave(each, 0).unsqueeze(1)
            values, hidden = network.values_and_memory(states[t].unsqueeze(1), hidden, masks)
            hidden = hidden[:, 0]
            after.append((values[:, 0], hidden))
    runner.compute()
    torch.testing.assert_close(buffer.value_preds.reshape(7, 4 * each, 1), torch.stack([v for v, _ in after]))
    expected = torch.stack([before[t] for t in (0, 3, 6)])
    torch.testing.assert_close(buffer.critic_hidden.reshape(3, 4 * each, 1, 16), expected)
    steps, envs, values = runner.valuer.finals(buffer)
    assert (steps.tolist(), envs.tolist()) == ([1, 4], [2, 0])
    for i, (t, n) in enumerate([(1, 2), (4, 0)]):
        remembered = after[t][1].view(4, each, 1, 16)[n]
        with torch.no_grad():
            alone, _ = network.values_and_memory(finals[i].unsqueeze(1), remembered, torch.ones(each, 1, 1))
        torch.testing.assert_close(values[i].reshape(each, 1), alone[:, 0])


@pytest.mark.parametrize("envs", [1, 2])
def test_NUM_12_an_agent_starts_an_episode_with_nothing_remembered(tmp_path: Path, envs: int) -> None:
    # Two equal numbers that are brought to mean 0 are nothing, so they are left as they are.
    overrides = [*MEMORY, f"train.n_rollout_threads={envs}", "model.use_feature_normalization=false"]
    runner = make(tmp_path, *world("ConstReward", T=3), *overrides, *QUICK)
    runner.warmup()
    runner.prep_rollout()
    runner.rollout()
    buffer = runner.buffer
    assert buffer.hidden is not None
    # What is seen never changes, so that hidden states depend on the step of the episode alone.
    for t in range(10):
        torch.testing.assert_close(buffer.hidden[t + 1], buffer.hidden[t % 3 + 1])
    assert not torch.allclose(buffer.hidden[2], buffer.hidden[1])
    runner.close()


def test_NUM_12_only_the_finished_environment_forgets() -> None:
    runner = small_runner(team_layout(), **CHUNKED)
    team = runner.team
    memory = team.new_memory(2)
    assert memory is not None
    obs = torch.randn(2, 3, 4)
    team.act(obs, memory=memory)
    fresh = memory.after.clone()
    memory.note_ends(np.array([False, True]))
    team.act(obs, memory=memory)
    torch.testing.assert_close(memory.after[1], fresh[1])
    assert not torch.allclose(memory.after[0], fresh[0])
    memory.note_ends(np.array([True, True]))
    team.act(obs, memory=memory)
    torch.testing.assert_close(memory.after, fresh)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("way", WAYS)
def test_what_a_departed_agent_sees_does_not_matter(way: str, memory: str) -> None:
    results = []
    for noise in (False, True):
        runner = runner_for(way, team_layout("box"), **MEMORIES[memory])
        fill(runner)
        buffer = runner.buffer
        assert buffer.masks is not None
        # Agent 1 leaves environment 2 after step 2; the next episode begins with step 4.
        buffer.masks[:, 2] = 1.0
        buffer.masks[4, 2] = 0.0
        buffer.active[2:4, 2, 1] = 0.0
        buffer.ended[3, 2] = True
        for t in range(6):
            runner.collect(t)
        if noise:
            buffer.obs[2:4, 2, 1] = 50.0
            buffer.actions[2:4, 2, 1] = -3.0
            buffer.action_log_probs[2:4, 2, 1] = -9.0
        learn(runner)
        results.append(parameters(runner))
        runner.sampling.manual_seed(1)
    # Metrics differ (the mean ratio counts all rows), what is learned does not.
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


def factor_rows(runner: OnPolicyBaseRunner) -> list[Tensor]:
    seen: list[Tensor] = []
    for actor in runner.actors:
        train = actor.train

        def noting(data: ActorData, lesson: Any, train: Any = train) -> Any:
            assert data.factor is not None
            seen.append(data.factor.clone())
            return train(data, lesson)

        actor.train = noting  # type: ignore[method-assign]
    return seen


def test_factor_belongs_to_its_step_and_environment() -> None:
    runner = small_runner(team_layout(), **CHUNKED, algo__fixed_order=True, algo__lr=0.01)
    fill(runner)
    buffer, seen = runner.buffer, factor_rows(runner)
    data = buffer.actor_data(0, torch.zeros(6, 4, 1))
    learn(runner)
    assert seen[0].shape == (4, 6, 1)
    assert seen[0].unique().tolist() == [1.0]
    exact = aggregate_ratio(runner.actors[0].log_probs(data) - data.log_probs, "prod")
    assert torch.equal(seen[1], exact)
    assert (exact - 1).abs().max() > 0.01


# Whole runs.

MEMORY = ["model.use_recurrent_policy=true", "model.data_chunk_length=5"]
WHOLE = ["model.use_naive_recurrent_policy=true"]
ALGOS = {
    "happo": ["algo=happo"],
    "haa2c": ["algo=haa2c"],
    "hatrpo": ["algo=hatrpo"],
    "mappo": ["algo=mappo", "algo.share_param=false"],
    "mappo-shared": ["algo=mappo"],
}


@pytest.mark.parametrize("memory", [MEMORY, WHOLE], ids=["chunked", "naive"])
@pytest.mark.parametrize("valuenorm", ["true", "false"])
@pytest.mark.parametrize("algo", ALGOS)
def test_CFG_12_trains_saves_and_loads(tmp_path: Path, algo: str, valuenorm: str, memory: list[str]) -> None:
    settings = [f"algo.use_valuenorm={valuenorm}", "train.num_env_steps=40", "checkpoint.interval=20"]
    runner = run(tmp_path, *ALGOS[algo], *memory, *settings, *world("Recall"), "model.recurrent_n=2")
    assert all_finite(runner)
    policy = harl.load(runner.folder.path)
    actions = policy.act({"agent_0": np.zeros(3, np.float32), "agent_1": np.zeros(3, np.float32)})
    assert set(actions) == {"agent_0", "agent_1"}


@pytest.mark.parametrize("state_type", ["EP", "FP"])
@pytest.mark.parametrize("algo", ALGOS)
def test_agents_that_leave_and_agents_that_differ(tmp_path: Path, algo: str, state_type: str) -> None:
    settings = [*MEMORY, f"env.state_type={state_type}", "train.num_env_steps=40", *QUICK]
    assert all_finite(run(tmp_path, *ALGOS[algo], *world("Deaths"), *settings))
    if algo != "mappo-shared":
        assert all_finite(run(tmp_path, *ALGOS[algo], *world("Hetero"), *settings))


MINIBATCHES = ["algo.actor_num_mini_batch=2", "algo.critic_num_mini_batch=2"]
REPEATED = {
    "happo": [*ALGOS["happo"], *MEMORY, *MINIBATCHES, "env=mpe"],
    "hatrpo": [*ALGOS["hatrpo"], *MEMORY, "env=mpe"],
    "mappo-shared": [*ALGOS["mappo-shared"], *MEMORY, *MINIBATCHES, "env=mpe"],
    "mappo-naive-fp": [*ALGOS["mappo"], *WHOLE, "env=mpe", "env.scenario=simple_speaker_listener", "env.state_type=FP"],
}


@pytest.mark.parametrize("kind", REPEATED)
def test_equal_seeds_give_equal_runs_and_a_stopped_one_goes_on_as_if_it_had_not(tmp_path: Path, kind: str) -> None:
    first, second = (run(tmp_path, *REPEATED[kind]) for _ in range(2))
    assert_same_run(first.folder, second.folder)
    # Within a rollout, in the middle of an episode of 25 steps.
    stopped = make(tmp_path, *REPEATED[kind])
    stop_at(stopped, 46)
    assert_same_run(first.folder, resume(stopped.folder).folder)


@pytest.mark.parametrize("algo", ["happo", "mappo-shared"])
def test_evaluation_does_not_change_what_training_remembers(tmp_path: Path, algo: str) -> None:
    quiet = run(tmp_path, *ALGOS[algo], *MEMORY, "env=mpe", "eval.use_eval=false")
    often = run(tmp_path, *ALGOS[algo], *MEMORY, "env=mpe", "eval.interval=20")
    assert len(evaluations(often.folder)) == 2 * 5
    for part in ("learners", "progress", "rng"):
        assert parts_of(checkpoint(quiet.folder), part) == parts_of(checkpoint(often.folder), part), part
    assert any(place.endswith("/hidden") for place in checkpoint(quiet.folder))


def test_loaded_policy_remembers_until_it_is_reset(tmp_path: Path) -> None:
    runner = run(tmp_path, *MEMORY, "env=mpe", *QUICK)
    policy = harl.load(runner.folder.path)
    shape = (4, 2, policy.layout.num_agents, *policy.layout.obs_shape)
    obs = np.random.default_rng(0).normal(size=shape).astype(np.float32)

    def logits(step: int) -> list[float]:
        policy.act(obs[step])
        assert policy._memory is not None
        result: list[float] = policy._memory.after.flatten().tolist()
        return result

    first = [logits(t) for t in range(4)]
    assert first[1] != logits(1)
    policy.reset()
    assert [logits(t) for t in range(4)] == first
    # One of two environments starts a new episode.
    policy.reset()
    logits(0)
    policy.reset(np.array([True, False]))
    half = logits(1)
    assert half[len(half) // 2 :] == first[1][len(half) // 2 :]
    assert half[: len(half) // 2] != first[1][: len(half) // 2]
    with pytest.raises(ValueError, match=r"the policies remember 2 environments, and obs has 1; call reset\(\) first"):
        policy.act(obs[0, :1])
    policy.reset()
    assert policy.act(obs[0, 0]).shape == (policy.layout.num_agents, policy.layout.action_dim)  # type: ignore[union-attr]


def test_weights_of_a_team_without_memory_are_refused_by_name(tmp_path: Path) -> None:
    plain = run(tmp_path, "env=mpe", *QUICK)
    with pytest.raises(ConfigError, match=r"recurrent_n: they have None, this run has 1"):
        make(tmp_path, "env=mpe", *MEMORY, f"init_from={plain.folder.path}")


SETTINGS = [
    "model.hidden_sizes=[32]",
    "algo.lr=3e-3",
    "algo.critic_lr=3e-3",
    "train.n_rollout_threads=8",
    "train.episode_length=25",
    "train.log_interval=1000",
    "eval.at_start=false",
    "eval.interval=1000000",
    "eval.eval_episodes=40",
    "eval.n_eval_rollout_threads=4",
    "checkpoint.interval=1000000",
    "logger.tensorboard=false",
]


def mean_return(folder: Path, *overrides: str) -> float:
    """Mean return of an agent in the evaluation at the end."""
    lines = evaluations(run(folder, *SETTINGS, *overrides).folder)
    assert len(lines) == 40
    return sum(line["return_mean"] for line in lines) / len(lines)


RECALL = [*world("Recall"), "model.data_chunk_length=5", "train.num_env_steps=5000"]


@pytest.mark.parametrize("algo", ["happo", "mappo-shared"])
def test_memory_solves_what_needs_it(tmp_path: Path, algo: str) -> None:
    """Best 1; whoever has forgotten the first step: 0.5."""
    assert mean_return(tmp_path, *ALGOS[algo], *RECALL, "model.use_recurrent_policy=true") > 0.95


@pytest.mark.parametrize("algo", ["happo", "mappo-shared"])
def test_no_network_without_memory_does(tmp_path: Path, algo: str) -> None:
    assert mean_return(tmp_path, *ALGOS[algo], *RECALL) < 0.75
