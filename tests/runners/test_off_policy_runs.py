"""Off-policy runs from start to end: counts, ratios, determinism, errors, and what is left behind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harl
from harl.algorithms.base import NonFiniteError
from harl.config import ConfigError
from harl.envs.api import EnvError
from harl.runners import OffPolicyBaseRunner
from tests.algorithms.learners import parameters
from tests.runners.off_policy_runs import (
    ALGORITHMS,
    QUICK,
    config_for,
    fixture,
    make,
    run,
)
from tests.runners.runs import assert_same_run, checkpoint, column, evaluations, metrics, parts_of

WORLDS = "tests.runners.worlds"
EPISODIC = fixture("ConstReward")


def quick(folder: Path, algo: str, env: str | None = EPISODIC, **overrides: Any) -> OffPolicyBaseRunner:
    return run(folder, algo, env, **QUICK, **overrides)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OffPolicyBaseRunner]:
    """One run of each algorithm, done."""
    folder = tmp_path_factory.mktemp("finished")
    return {algo: run(folder, algo) for algo in ALGORITHMS}


# Counts.


def test_D_42_budget_in_scientific_notation(tmp_path: Path) -> None:
    small = ["algo.batch_size=8", "algo.buffer_size=100", "model.hidden_sizes=[8]", "eval.use_eval=false"]
    runner = harl.make_runner(
        ["algo=haddpg", "env=mpe", "train.num_env_steps=2e2", f"output_dir={tmp_path}", "logger.progress=off", *small]
    )
    assert runner.algo_args.train.num_env_steps == 200
    runner.run()
    assert runner.env_steps == 200


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("warmup", [0, 2, 20])
def test_D_43_warm_up_may_be_shorter_than_a_batch(tmp_path: Path, algo: str, warmup: int) -> None:
    runner = quick(tmp_path, algo, train__warmup_steps=warmup, algo__batch_size=32, train__train_interval=1)
    assert runner.env_steps == 80
    assert runner.vector_steps == 40 - warmup // 2
    assert runner.total_it == runner.vector_steps
    assert all(vector.isfinite().all() for vector in parameters(runner).values())


def test_D_39_budget_includes_the_warm_up_and_is_kept_to_the_step(tmp_path: Path) -> None:
    runner = make(tmp_path, "matd3", EPISODIC)
    drawn, chosen = [], []
    sample_actions, get_actions = runner.sample_actions, runner.get_actions
    runner.sample_actions = lambda *given: drawn.append(1) or sample_actions(*given)  # type: ignore[method-assign,func-returns-value]
    runner.get_actions = lambda *given, **more: chosen.append(1) or get_actions(*given, **more)  # type: ignore[method-assign,func-returns-value]
    runner.run()
    assert (len(drawn), len(chosen)) == (10, 30)
    assert runner.env_steps == 80
    assert len(runner.buffer) == 48
    assert metrics(runner.folder)[-1]["env_steps"] == "80"


def test_budget_that_is_no_multiple_ends_with_the_step_that_reaches_it(tmp_path: Path) -> None:
    runner = quick(tmp_path, "maddpg", train__num_env_steps=81, train__n_rollout_threads=4, train__warmup_steps=18)
    assert runner.env_steps == 84
    assert runner.vector_steps == 21 - 5


@pytest.mark.parametrize(
    ("interval", "ratio", "expected"), [(3, 1, 30), (1, 1, 30), (5, 2, 60), (1, 0.5, 15), (3, 0.5, 15), (4, 0.3, 8)]
)
def test_updates_for_each_step_are_as_configured(tmp_path: Path, interval: int, ratio: float, expected: int) -> None:
    runner = quick(tmp_path, "haddpg", train__train_interval=interval, train__update_per_train=ratio)
    assert runner.vector_steps == 30
    assert runner.total_it == expected


@pytest.mark.parametrize(
    "overrides", [{"train__warmup_steps": 1000}, {"train__train_interval": 31}, {"train__update_per_train": 0.01}]
)
def test_a_run_that_ends_before_the_first_update_says_so(
    tmp_path: Path, overrides: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    runner = quick(tmp_path, "hatd3", **overrides)
    assert runner.total_it == 0
    assert "nothing will be learned: train.num_env_steps=80" in capsys.readouterr().out
    quick(tmp_path, "hatd3", seed=2)
    assert "nothing will be learned" not in capsys.readouterr().out


def test_MEM_06_memory_of_the_replay_is_told_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = quick(tmp_path, "haddpg", algo__buffer_size=100_000)
    expected = runner.buffer.nbytes / 2**20
    assert expected > 5
    assert f"replay buffer of 100,000 transitions, {expected:,.0f} MiB when full" in capsys.readouterr().out


def test_MEM_06_replay_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        make(tmp_path, "hasac", algo__buffer_size=10**12)
    assert "algo.buffer_size=1000000000000" in str(refused.value)
    assert "GiB are available" in str(refused.value)
    assert "lower buffer_size" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


# Equal seeds.


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_SED_05_equal_seeds_give_equal_runs_replay_included(
    tmp_path: Path, finished: dict[str, OffPolicyBaseRunner], algo: str
) -> None:
    second = run(tmp_path, algo)
    assert_same_run(finished[algo].folder, second.folder)
    places = checkpoint(second.folder)
    assert any("/progress/replay/before" in place for place in places)
    assert any(place.startswith("/learners/critic") for place in places)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_another_seed_gives_another_run(tmp_path: Path, finished: dict[str, OffPolicyBaseRunner], algo: str) -> None:
    other = run(tmp_path, algo, seed=8)
    one, two = parameters(finished[algo]), parameters(other)
    learned = [name for name in one if not name.startswith(("temperature", "value_normalizer deb"))]
    assert not [name for name in learned if torch.equal(one[name], two[name])]
    assert evaluations(finished[algo].folder) != evaluations(other.folder)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_evaluation_does_not_change_training(
    tmp_path: Path, finished: dict[str, OffPolicyBaseRunner], algo: str
) -> None:
    quiet = run(tmp_path, algo, eval__use_eval=False, logger__tensorboard=False)
    # After the warm-up of 20 steps, at 40, and at the end.
    assert len(evaluations(finished[algo].folder)) == 2 * 3
    for part in ("learners", "progress", "rng"):
        assert parts_of(checkpoint(quiet.folder), part) == parts_of(checkpoint(finished[algo].folder), part), part


def test_evaluation_of_environments_that_draw_from_global_generators_does_not_change_training(tmp_path: Path) -> None:
    world = fixture("GlobalDice", WORLDS)
    quiet = run(tmp_path, "hasac", world, eval__use_eval=False)
    often = run(tmp_path, "hasac", world, eval__interval=20)
    assert parts_of(checkpoint(quiet.folder), "learners") == parts_of(checkpoint(often.folder), "learners")


def test_rendering_in_mid_run_does_not_change_training(
    tmp_path: Path, finished: dict[str, OffPolicyBaseRunner]
) -> None:
    filmed = make(tmp_path, "hasac")
    bout = filmed.learn_for_a_while

    def filming() -> None:
        if filmed.vector_steps == 15:
            assert len(filmed.render(episodes=1)) == 1
        bout()

    filmed.learn_for_a_while = filming  # type: ignore[method-assign]
    filmed.run()
    assert parameters(filmed).keys() == parameters(finished["hasac"]).keys()
    assert all(torch.equal(v, parameters(finished["hasac"])[k]) for k, v in parameters(filmed).items())


# What a run leaves behind.


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_D_40_numbers_in_the_log(finished: dict[str, OffPolicyBaseRunner], algo: str) -> None:
    runner = finished[algo]
    untrained, *rows = metrics(runner.folder)
    assert untrained["env_steps"] == "0"
    assert {"eval/return_sum", "eval/episode_length"} <= untrained.keys()
    assert [row["env_steps"] for row in rows] == ["20", "40", "60", "80"]
    wanted = {"critic/value_loss", "critic/critic_grad_norm", "critic/q"}
    wanted |= {f"agent/agent_{i}/{name}" for i in range(3) for name in ("policy_loss", "actor_grad_norm")}
    if algo == "hasac":
        wanted |= {"critic/alpha", "agent/agent_2/alpha"}
    assert wanted <= rows[-1].keys()
    assert all(math.isfinite(float(cell)) for row in rows for cell in row.values())
    assert "train/return_sum" in rows[2], "the first episodes of 25 steps ended"
    assert len(column(runner.folder, "time/steps_per_second")) == 4
    assert "critic/value_loss" not in rows[0], "nothing was learned in the warm-up"


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_loaded_team_acts_as_the_trained_one(finished: dict[str, OffPolicyBaseRunner], algo: str) -> None:
    runner = finished[algo]
    policy = harl.load(runner.folder.path, "latest")
    assert policy.env_steps == 80
    obs = np.random.default_rng(0).standard_normal((5, 3, *runner.layout.obs_shape)).astype(np.float32)
    acted = policy.act(obs)
    assert isinstance(acted, np.ndarray)
    assert np.array_equal(acted, runner.get_actions(obs, add_random=False))
    by_agent = policy.act({agent: obs[0, i] for i, agent in enumerate(runner.layout.agents)})
    assert isinstance(by_agent, dict)
    for agent, space in zip(runner.layout.agents, runner.layout.action_spaces, strict=True):
        assert space.contains(by_agent[agent])
    policy.seed(3)
    one = policy.act(obs, deterministic=False)
    policy.seed(3)
    assert np.array_equal(one, policy.act(obs, deterministic=False))


@pytest.mark.parametrize("algo", ["hasac", "matd3"])
def test_a_finished_run_can_be_filmed(finished: dict[str, OffPolicyBaseRunner], algo: str) -> None:
    from harl.config import compose, to_render_config
    from harl.runners.playback import Playback

    given = [f"run={finished[algo].folder.path}", "render.episodes=1", "render.checkpoint=latest"]
    playback = Playback(finished[algo].folder.path, to_render_config(compose(given, config_name="render")).render)
    (episode,) = playback.play()
    assert episode.length == 25
    assert playback.videos
    assert all(path.stat().st_size > 0 for path in playback.videos)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_learning_rates_fall_to_nothing(tmp_path: Path, algo: str) -> None:
    runner = make(tmp_path, algo, EPISODIC, train__use_linear_lr_decay=True, train__train_interval=10)
    learners = [*(actor.optimizer for actor in runner.team.own), runner.critic.optimizer]
    rates, bout = [], runner.learn_for_a_while

    def noting() -> None:
        bout()
        rates.append([learner.adam.param_groups[0]["lr"] / learner.initial_lr for learner in learners])

    runner.learn_for_a_while = noting  # type: ignore[method-assign]
    runner.run()
    # After bouts at 40, 60 and 80 of 80 steps.
    assert rates == [pytest.approx([fraction] * len(learners)) for fraction in (0.5, 0.25, 0.0)]


# Faults.


def spoil(network: torch.nn.Module, value: float = math.nan) -> None:
    """Let gradients of a network be no numbers."""
    next(network.parameters()).register_hook(lambda gradient: gradient * value)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_NUM_23_an_actor_that_becomes_nan_is_named(tmp_path: Path, algo: str, value: float) -> None:
    """Though it makes everybody else's numbers NaN within the same bout of updates."""
    runner = make(tmp_path, algo, EPISODIC, train__train_interval=10, algo__fixed_order=algo.startswith("ha"))
    spoil(runner.team.own[1].network, value)
    with pytest.raises(NonFiniteError, match=r"actor of agent_1: actor_grad_norm became NaN or infinite") as error:
        runner.run()
    assert "after 40 environment steps; the checkpoints are from before it" in str(error.value)
    assert runner.folder.status["status"] == "failed"
    assert "agent_1" in runner.folder.status["reason"]
    state = checkpoint(runner.folder)
    learned = [value for place, value in state.items() if place.startswith("/learners") and "optimizer" not in place]
    assert all(np.isfinite(np.asarray(value, float)).all() for value in learned)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_NUM_23_a_critic_that_becomes_nan_is_named(tmp_path: Path, algo: str) -> None:
    runner = make(tmp_path, algo, EPISODIC)
    network = runner.critic.network if algo == "had3qn" else runner.critic.networks[-1]
    spoil(network)
    with pytest.raises(NonFiniteError, match=r"critic: critic_grad_norm became NaN or infinite"):
        runner.run()


def test_NUM_23_the_one_network_of_all_agents_is_named(tmp_path: Path) -> None:
    runner = make(tmp_path, "maddpg", EPISODIC, algo__share_param=True)
    spoil(runner.team.networks[0])
    with pytest.raises(NonFiniteError, match="actor of the shared policy: actor_grad_norm"):
        runner.run()


@pytest.mark.parametrize("where", ["obs", "reward"])
def test_DTY_02_nan_of_an_environment_stops_before_anything_is_stored(tmp_path: Path, where: str) -> None:
    runner = make(tmp_path, "hatd3", fixture("NaNAt", k=3, where=where), eval__use_eval=False)
    with pytest.raises(EnvError, match=r"environment 0 returned nan in the (observation|reward) of agent_0"):
        runner.run()
    stored = runner.buffer.gather(torch.arange(len(runner.buffer)))
    assert len(runner.buffer) == 2 * 2
    assert all(getattr(stored, name).isfinite().all() for name in ("obs", "next_obs", "share_obs", "rewards"))


def test_environment_metrics_are_logged(tmp_path: Path) -> None:
    runner = quick(tmp_path, "haddpg", fixture("Reports", WORLDS))
    assert len(column(runner.folder, "env/height")) == 4


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("algo__time_limit", "mask", "one of bootstrap, ignore"),
        ("algo__buffer_size", 1, "must be at least train.n_rollout_threads=2"),
        ("algo__batch_size", 1000, "must be at least algo.batch_size=1000"),
        ("algo__n_step", 0, "a whole number from 1 to 10000"),
        ("train__update_per_train", 0, "a number above 0"),
        ("algo__polyak", 0, "a number above 0, at most 1"),
    ],
)
def test_values_that_make_no_sense_are_refused_with_what_is_allowed(key: str, value: Any, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_for("hatd3", **{key: value})
    assert key.replace("__", ".") in str(refused.value)
    assert text in str(refused.value)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_recurrent_options_are_refused(algo: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.use_recurrent_policy"):
        harl.make_runner([f"algo={algo}", "env=mpe", "model.use_recurrent_policy=true"])


def test_HASAC_refuses_activations_that_its_discrete_policies_have_no_gain_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.activation_func=hardswish.*agent_0.*allowed.*sigmoid, tanh, relu"):
        make(tmp_path, "hasac", "spread", model__activation_func="hardswish")
    assert list(tmp_path.iterdir()) == []
    runner = make(tmp_path, "hasac", "spread_box", model__activation_func="hardswish")
    runner.close()


def test_an_n_step_longer_than_an_episode_ends_with_it(tmp_path: Path) -> None:
    runner = quick(tmp_path, "hasac", fixture("ConstReward", T=5), algo__n_step=40, algo__gamma=0.5)
    batch = runner.buffer.gather(torch.arange(len(runner.buffer)))
    steps = -torch.log2(batch.discounts)
    assert set(steps.flatten().tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    torch.testing.assert_close(batch.rewards, (1 - 0.5**steps) / 0.5)
