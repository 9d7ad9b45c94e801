"""The trust-region step of HATRPO: its limit, its gain, and when it is not taken."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from harl.algorithms import base
from harl.algorithms.actors import trpo
from harl.algorithms.actors.trpo import TRPO, SkippedUpdateWarning
from harl.algorithms.base import NonFiniteError
from harl.buffers.rollout import ActorData
from harl.models.policy import StochasticPolicy
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

LARGER: dict[str, Any] = {"train__episode_length": 50, "train__n_rollout_threads": 8}


def actor_and_rows(kind: str = "discrete", **overrides: Any) -> tuple[TRPO, ActorData]:
    """The actor of an agent that was away for some rows, and its rows with a factor and advantages."""
    runner = small_runner(team_layout(kind, has_masks=kind != "box"), "hatrpo", **LARGER, **overrides)
    fill(runner)
    runner.buffer.active[2:9, :3, 0] = 0.0
    source = torch.Generator().manual_seed(3)
    factor = torch.rand(400, 1, generator=source) + 0.5
    data = runner.buffer.actor_data(0, torch.randn(50, 8, 1, generator=source), factor)
    actor = runner.actors[0]
    assert isinstance(actor, TRPO)
    return actor, data


def mean_kl(old: StochasticPolicy, new: StochasticPolicy, data: ActorData) -> float:
    """Mean KL(old ‖ new) over the rows in which the agent acted."""
    with torch.no_grad():
        kl = old(data.obs, data.available_actions).kl(new(data.obs, data.available_actions))
    return float((kl * data.weights).sum() / data.weights.sum())


def surrogate(policy: StochasticPolicy, data: ActorData) -> Tensor:
    """Mean of ρ M Â over the rows in which the agent acted."""
    log_ratio = (policy(data.obs, data.available_actions).log_prob(data.actions) - data.log_probs).sum(1, keepdim=True)
    return (log_ratio.exp() * data.factor * data.advantages * data.weights).sum() / data.weights.sum()


def flat_gradient(value: Tensor, policy: StochasticPolicy, create_graph: bool = False) -> Tensor:
    gradients = torch.autograd.grad(value, list(policy.parameters()), create_graph=create_graph)
    return torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("threshold", [0.01, 1e-4])
@pytest.mark.parametrize("kind", SPACES)
def test_step_stays_in_the_trust_region_and_gains(kind: str, threshold: float) -> None:
    actor, data = actor_and_rows(kind, algo__kl_threshold=threshold)
    before = copy.deepcopy(actor.policy)
    info = actor.train(data)
    assert 0.05 * threshold < mean_kl(before, actor.policy, data) < threshold
    assert info["kl"] == pytest.approx(mean_kl(before, actor.policy, data), rel=1e-5)
    gain = (surrogate(actor.policy, data) - surrogate(before, data)).item()
    assert gain > 0
    assert info["loss_improve"] == pytest.approx(gain, rel=1e-3)
    assert info["loss_improve"] > actor.config.accept_ratio * info["expected_improve"]


@pytest.mark.parametrize("kind", SPACES)
def test_direction_and_length_are_those_of_ten_dense_conjugate_gradient_iterations(kind: str) -> None:
    actor, data = actor_and_rows(kind, algo__accept_ratio=0.0, algo__kl_threshold=1e-5)
    policy = copy.deepcopy(actor.policy)
    start = actor.vector.detach().clone()
    gradient = flat_gradient(surrogate(policy, data), policy).double()
    was = policy(data.obs, data.available_actions)
    old = copy.deepcopy(policy)(data.obs, data.available_actions)
    kl = (old.kl(was) * data.weights).sum() / data.weights.sum()
    kl_gradient = flat_gradient(kl, policy, create_graph=True)
    columns = [flat_gradient(entry, policy, create_graph=True).detach() for entry in kl_gradient]
    matrix = torch.stack(columns).double() + 0.1 * torch.eye(len(start), dtype=torch.float64)
    solution, residual = torch.zeros_like(gradient), gradient.clone()
    direction = residual.clone()
    for _ in range(10):
        length = residual @ residual / (direction @ matrix @ direction)
        following = residual - length * matrix @ direction
        solution += length * direction
        direction = following + direction * (following @ following) / (residual @ residual)
        residual = following
    step = solution / (0.5 * solution @ matrix @ solution / 1e-5).sqrt()
    info = actor.train(data)
    taken = (actor.vector.detach() - start).double()
    assert info["step_fraction"] > 0
    # Parameters are float32, of which a step of this length has four digits.
    torch.testing.assert_close(taken, step * info["step_fraction"], rtol=1e-2, atol=2e-3 * step.abs().max().item())
    assert info["expected_improve"] == pytest.approx(float(gradient @ step) * info["step_fraction"], rel=1e-3)


def test_step_is_cut_back_until_the_kl_fits() -> None:
    # The quadratic model promises a KL of 2; far out the true one is larger.
    actor, data = actor_and_rows("box", algo__kl_threshold=2.0, algo__accept_ratio=0.0, algo__ls_step=40)
    before = copy.deepcopy(actor.policy)
    info = actor.train(data)
    exponent = torch.tensor(info["step_fraction"]).log() / torch.tensor(0.8).log()
    assert exponent.item() == pytest.approx(round(exponent.item()), abs=1e-4)
    assert round(exponent.item()) >= 1
    assert mean_kl(before, actor.policy, data) < 2.0


@pytest.mark.parametrize("kind", SPACES)
def test_rejected_step_leaves_the_parameters_bit_for_bit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, data = actor_and_rows(kind, algo__ls_step=4)
    before = actor.vector.detach().clone()
    seen: list[Tensor] = []
    judge = TRPO._judge

    def never_good_enough(self: TRPO, data: ActorData, old: Any) -> Any:
        seen.append(self.vector.detach().clone())
        return judge(self, data, old)._replace(surrogate=0.0)

    monkeypatch.setattr(TRPO, "_judge", never_good_enough)
    info = actor.train(data)
    assert len(seen) == 1 + 4
    assert not any(torch.equal(tried, before) for tried in seen[1:])
    assert torch.equal(actor.vector, before)
    assert all(torch.equal(p, v) for p, v in zip(actor.policy.parameters(), views(actor, before), strict=True))
    assert (info["step_fraction"], info["kl"], info["loss_improve"], info["expected_improve"]) == (0.0, 0.0, 0.0, 0.0)
    assert info["ratio"] == pytest.approx(1.0, abs=1e-5)


def views(actor: TRPO, vector: Tensor) -> list[Tensor]:
    shapes = [parameter.shape for parameter in actor.policy.parameters()]
    return [part.view(s) for part, s in zip(torch.split(vector, [s.numel() for s in shapes]), shapes, strict=True)]


@pytest.mark.parametrize("kl", [0.01, 0.5, float("nan")])
def test_G_3_and_NUM_08_step_at_or_over_the_limit_is_never_taken(kl: float, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, data = actor_and_rows(algo__kl_threshold=0.01)
    before = actor.vector.detach().clone()
    judge = TRPO._judge
    monkeypatch.setattr(TRPO, "_judge", lambda self, data, old: judge(self, data, old)._replace(kl=kl))
    assert actor.train(data)["step_fraction"] == 0.0
    assert torch.equal(actor.vector, before)


def test_NUM_08_kl_of_every_agent_on_simple_spread(tmp_path: Any) -> None:
    from tests.runners.runs import QUICK, make

    runner = make(
        tmp_path,
        "algo=hatrpo",
        "env=mpe",
        *QUICK,
        "train.n_rollout_threads=8",
        "train.episode_length=50",
        "train.num_env_steps=8000",
        "model.hidden_sizes=[32]",
        "algo.kl_threshold=0.005",
    )
    kls = noted_kls(runner)
    runner.run()
    assert len(kls) == 3 * 20
    assert all(kl <= 0.005 for kl in kls)
    assert sum(kl > 0.0005 for kl in kls) > 50


def noted_kls(runner: OnPolicyBaseRunner) -> list[float]:
    """Fills with the mean KL of each actor's update, computed anew from the network before and after it."""
    kls: list[float] = []

    def watch(actor: Any) -> None:
        train = actor.train

        def training(data: ActorData, lesson: Any) -> Any:
            before = copy.deepcopy(actor.policy)
            info = train(data, lesson)
            kls.append(mean_kl(before, actor.policy, data))
            return info

        actor.train = training

    for actor in runner.actors:
        watch(actor)
    return kls


def test_USR_04_settings_of_a_user(tmp_path: Any) -> None:
    from tests.runners.runs import QUICK, make

    typed = ["algo.kl_threshold=1e-4", "algo.critic_lr=5e-3", "algo.opti_eps=1e-5", "algo.gamma=.99"]
    runner = make(tmp_path, "algo=hatrpo", "env=mpe", *QUICK, *typed, "train.use_linear_lr_decay=true")
    algo: Any = runner.algo
    assert (algo.kl_threshold, algo.critic_lr, algo.opti_eps, algo.gamma) == (1e-4, 5e-3, 1e-5, 0.99)
    kls = noted_kls(runner)
    rates: list[float] = []
    train = runner.train

    def training() -> Any:
        rates.append(runner.critic.optimizer.adam.param_groups[0]["lr"])
        return train()

    runner.train = training  # type: ignore[method-assign]
    runner.run()
    assert len(kls) == 3 * 4
    assert all(kl <= 1e-4 for kl in kls)
    assert rates == pytest.approx([5e-3, 3.75e-3, 2.5e-3, 1.25e-3])
    runner.decay_learning_rates()
    assert runner.critic.optimizer.adam.param_groups[0]["lr"] == 0.0


def skipped(actor: TRPO, data: ActorData, match: str) -> None:
    """The update is skipped, twice, and said once."""
    before = actor.vector.detach().clone()
    with pytest.warns(SkippedUpdateWarning, match=match) as said:
        infos = [actor.train(data), actor.train(data)]
    assert len(said) == 1
    assert torch.equal(actor.vector, before)
    for info in infos:
        assert info["step_fraction"] == info["kl"] == info["loss_improve"] == 0.0
        assert all(value == value for value in info.values())


@pytest.mark.parametrize("kind", SPACES)
def test_NUM_09_zero_gradient(kind: str) -> None:
    actor, data = actor_and_rows(kind)
    data.advantages = torch.zeros_like(data.advantages)
    skipped(actor, data, "agent_0: the gradient of its surrogate is zero")


@pytest.mark.parametrize("size", [1e-30, 1e-12])
def test_NUM_09_gradient_that_only_rounding_could_leave(size: float) -> None:
    actor, data = actor_and_rows()
    data.advantages = size * data.advantages
    skipped(actor, data, "the gradient of its surrogate is zero")


@pytest.mark.parametrize("after", [0, 3])
def test_NUM_09_curvature_that_is_slightly_negative(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, data = actor_and_rows()

    class Bent(trpo.FisherProduct):
        made = 0

        def __call__(self, vector: Tensor) -> Tensor:
            self.made += 1
            return super().__call__(vector) if self.made <= after else -1e-9 * vector

    monkeypatch.setattr(trpo, "FisherProduct", Bent)
    skipped(actor, data, "the KL does not grow")


def test_NUM_06_no_reward_at_all_for_five_updates() -> None:
    runner = small_runner(team_layout(), "hatrpo")
    runner.critic.get_values = lambda states: torch.zeros(len(states), 1)  # type: ignore[method-assign]
    runner.critic.denormalize = lambda values: values  # type: ignore[method-assign]
    before = parameters(runner)[:3]

    def updates() -> None:
        for seed in range(5):
            fill(runner, seed)
            runner.buffer.rewards.zero_()
            learn(runner)

    with pytest.warns(SkippedUpdateWarning) as said:
        updates()
    assert len(said) == 3  # one for each agent
    assert all_finite(runner)
    assert all(torch.equal(now, then) for now, then in zip(parameters(runner), before, strict=False))


def test_NUM_23_curvature_that_is_no_number_stops_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    actor, data = actor_and_rows()
    monkeypatch.setattr(trpo.FisherProduct, "__call__", lambda self, vector: vector * float("nan"))
    with pytest.raises(NonFiniteError, match="actor of agent_0: the curvature of the KL became NaN"):
        actor.train(data)


@pytest.mark.parametrize("kind", SPACES)
def test_D_03_rows_of_a_dead_agent_change_neither_the_step_nor_the_kl(kind: str) -> None:
    results, infos = [], []
    for noisy in (False, True):
        actor, data = actor_and_rows(kind)
        if noisy:
            dead = data.weights[:, 0] == 0
            source = torch.Generator().manual_seed(9)
            data.obs, data.advantages = data.obs.clone(), data.advantages.clone()
            data.obs[dead] = 50 * torch.randn(int(dead.sum()), 4, generator=source)
            data.advantages[dead] = 50 * torch.randn(int(dead.sum()), 1, generator=source)
        info = actor.train(data)
        infos.append({name: value for name, value in info.items() if name != "ratio"})
        results.append(actor.vector.detach().clone())
    assert infos[0]["step_fraction"] > 0
    assert torch.equal(*results)
    assert infos[0] == infos[1]


def test_rows_that_a_person_drove_do_not_count_even_where_dead_agents_do() -> None:
    def trained(advantage: float) -> Tensor:
        actor, data = actor_and_rows(algo__use_policy_active_masks=False)
        data.advantages = data.advantages.clone()
        data.decided, data.weights = data.decided.clone(), data.weights.clone()
        data.decided[:50] = data.weights[:50] = 0.0
        data.advantages[:50] = advantage
        assert actor.train(data)["step_fraction"] > 0
        return actor.vector.detach().clone()

    assert torch.equal(trained(3.0), trained(-50.0))


def test_step_does_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, data = actor_and_rows()
    before = whole.vector.detach().clone()
    whole.train(data)
    monkeypatch.setattr(base, "CACHE_ROWS", 70)
    cut, data = actor_and_rows()
    cut.train(data)
    step = whole.vector - before
    torch.testing.assert_close(cut.vector - before, step, rtol=1e-3, atol=1e-4 * step.abs().max().item())


@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_HET_02_agents_of_all_kinds_with_masks_and_deaths_learn_together(state_type: str) -> None:
    runner = small_runner(hetero_layout(state_type), "hatrpo", **LARGER)
    taken = dict.fromkeys(runner.layout.agents, 0.0)
    for seed in range(3):
        fill(runner, seed)
        runner.buffer.active[2:4, :, 1] = 0.0
        kls = noted_kls(runner)
        infos, _ = learn(runner)
        assert all_finite(runner)
        assert all(kl < 0.01 for kl in kls)
        for agent, info in infos.items():
            taken[agent] += info["step_fraction"]
    assert all(fraction > 0 for fraction in taken.values())


def test_P_10_no_network_is_made_and_no_number_drawn_in_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = small_runner(team_layout("box"), "hatrpo")
    fill(runner)
    state = torch.get_rng_state()
    monkeypatch.setattr(torch.nn.Module, "__init__", lambda self, *args: pytest.fail("a network was made"))
    infos, _ = learn(runner)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(info["step_fraction"] > 0 for info in infos.values())


def test_actor_of_a_checkpoint_has_weights_and_no_optimiser() -> None:
    runner, other = (small_runner(team_layout(), "hatrpo") for _ in range(2))
    fill(runner)
    learn(runner)
    for source, target in zip(runner.actors, other.actors, strict=True):
        assert set(source.get_state()) == {"policy"}
        target.set_state(source.get_state())
    assert all(torch.equal(one, two) for one, two in zip(parameters(runner)[:3], parameters(other)[:3], strict=True))


def test_no_warning_where_steps_are_taken() -> None:
    actor, data = actor_and_rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SkippedUpdateWarning)
        assert actor.train(data)["step_fraction"] > 0
