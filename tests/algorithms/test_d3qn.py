"""Local dueling networks and the critic of joint actions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.algorithms.learners import feed, learners, parameters, random_batch, random_masks, team_layout
from tests.runners.bare import layout_of


def differing(sizes: tuple[int, ...], state_type: str = "EP", has_masks: bool = False) -> Any:
    """A layout of agents with different numbers of choices."""
    import dataclasses

    from gymnasium import spaces

    layout = layout_of(len(sizes), 4, 6, spaces.Discrete(2), state_type, has_masks)
    return dataclasses.replace(layout, action_spaces=tuple(spaces.Discrete(n) for n in sizes))


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def test_joint_index_has_the_first_agent_fastest() -> None:
    critic = learners("had3qn", differing((3, 2, 4))).critic
    combinations = list(itertools.product(range(4), range(2), range(3)))
    entries = [column(*(c[2 - i] for c in combinations)).float() for i in range(3)]
    assert critic.index(entries).flatten().tolist() == list(range(24))
    assert critic.index([column(1.0), column(1.0), column(2.0)]).item() == 1 + 3 * 1 + 3 * 2 * 2


@pytest.mark.parametrize("state_type", ["EP", "FP"])
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
def test_best_reply_by_brute_force(state_type: str, masked: bool) -> None:
    layout = differing((3, 2, 4), state_type, has_masks=masked)
    critic = learners("had3qn", layout).critic
    batch = random_batch(layout, rows=40)
    critic.look_at(batch)
    entries = critic.encode(batch)
    for i, size in enumerate(layout.action_numbers):
        mask = batch.available_actions[i, :, :size] if batch.available_actions is not None else None
        replies = critic.best_reply(i, batch, entries, mask)
        for row in range(40):
            options = {}
            for choice in range(size):
                if mask is not None and mask[row, choice] == 0:
                    continue
                joint = [entry[row : row + 1].clone() for entry in entries]
                joint[i] = column(float(choice))
                state = batch.share_obs[i, row] if state_type == "FP" else batch.share_obs[row]
                options[choice] = critic.network(state)[critic.index(joint)].item()
            assert replies[row].item() == max(options, key=lambda choice: options[choice])


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
def test_D_29_local_values_are_regressed_at_every_legal_choice_on_the_critics_word(masked: bool) -> None:
    runner = learners("had3qn", differing((3, 2), has_masks=masked))
    batch, actor = random_batch(runner.layout), runner.team.own[0]
    runner.critic.look_at(batch)
    entries = runner.critic.encode(batch)
    total = 0.0
    for row in range(32):
        legal = batch.available_actions[0, row] if batch.available_actions is not None else torch.ones(3)
        choices = [choice for choice in range(3) if legal[choice]]
        state, obs = batch.share_obs[row], batch.obs[0, row]
        joint = [choice + 3 * int(entries[1][row]) for choice in choices]
        errors = actor.network(obs)[choices] - runner.critic.network(state)[joint]
        total += errors.square().mean().item() / 32
    assert actor.objective(0, batch, entries, runner.critic).item() == pytest.approx(total, rel=1e-5)


def test_D_29_as_the_original_local_values_are_regressed_at_their_own_choice_alone() -> None:
    runner = learners("had3qn", differing((3, 2)), algo__regress_at="greedy")
    batch, actor = random_batch(runner.layout), runner.team.own[0]
    runner.critic.look_at(batch)
    entries = runner.critic.encode(batch)
    values = actor.network(batch.obs[0])
    choice = values.argmax(-1, keepdim=True)
    targets = runner.critic.network(batch.share_obs).gather(-1, choice + 3 * entries[1].long()).detach()
    expected = (values.gather(-1, choice) - targets).square().mean()
    assert actor.objective(0, batch, entries, runner.critic).item() == pytest.approx(expected.item(), rel=1e-6)


def test_later_agents_see_the_best_reply_of_earlier_ones() -> None:
    runner = learners("had3qn", differing((3, 2, 4)), algo__fixed_order=True)
    batch, seen = random_batch(runner.layout), {}
    for i, actor in enumerate(runner.team.own):
        improve = actor.improve

        def noting(agents: Any, batch: Any, entries: Any, critic: Any, i: int = i, improve: Any = improve) -> Any:
            seen[i] = [entry.clone() for entry in entries]
            return improve(agents, batch, entries, critic)

        actor.improve = noting
    greedy = [actor.entry_before(i, batch) for i, actor in enumerate(runner.team.own)]
    feed(runner, batch)
    runner.train()
    critic = runner.critic
    first = critic.best_reply(0, batch, [greedy[0], greedy[1], greedy[2]], None)
    assert torch.equal(seen[1][0], first)
    assert torch.equal(seen[1][2], greedy[2])
    assert torch.equal(seen[2][1], critic.best_reply(1, batch, [first, greedy[1], greedy[2]], None))
    assert torch.equal(seen[0][1], greedy[1])


@pytest.mark.parametrize("double_q", [False, True])
def test_double_q_says_whose_next_choices_are_valued(double_q: bool) -> None:
    runner = learners("had3qn", team_layout("discrete"), algo__double_q=double_q)
    actor, obs = runner.team.own[0], torch.randn(200, 4)
    for parameter in actor.target_network.parameters():
        parameter.data.normal_()
    online, slow = (network(obs).argmax(-1, keepdim=True).float() for network in (actor.network, actor.target_network))
    assert not torch.equal(online, slow)
    entries, log_probs = actor.following(obs, None)
    assert torch.equal(entries, online if double_q else slow)
    assert log_probs is None


@pytest.mark.parametrize("explore", [False, True])
def test_D_11_choices_obey_masks(explore: bool) -> None:
    layout = team_layout("discrete", has_masks=True)
    runner = learners("had3qn", layout, algo__epsilon=0.5)
    masks = random_masks(layout, 5000, torch.Generator().manual_seed(1)).transpose(0, 1).contiguous()
    obs = torch.randn(5000, 3, 4)
    actions = runner.team.act(obs, masks, deterministic=not explore)[0]
    assert (masks.gather(-1, actions.long()) == 1).all()
    for i, actor in enumerate(runner.team.own):
        for network in (actor.network, actor.target_network):
            network.dueling_a.mlp[-2].bias.data[1] = 1e3
        for draw in (actor.following, actor.current):
            choices = draw(obs[:, i], masks[:, i])[0]
            assert (masks[:, i].gather(-1, choices.long()) == 1).all()


def test_D_11_the_local_target_is_at_a_legal_choice() -> None:
    layout = team_layout("discrete", has_masks=True)
    runner = learners("had3qn", layout, algo__regress_at="greedy")
    batch, actor, told = random_batch(layout), runner.team.own[1], []
    actor.network.dueling_a.mlp[-2].bias.data[3] = 1e3
    runner.critic.value_for = lambda i, batch, entries: told.append(entries[i]) or torch.zeros(32, 1)
    actor.objective(1, batch, runner.critic.encode(batch), runner.critic)
    assert batch.available_actions is not None
    assert (batch.available_actions[1].gather(-1, told[0].long()) == 1).all()


def test_D_29_the_coin_is_thrown_for_each_environment_and_agent() -> None:
    runner = learners("had3qn", team_layout("discrete"), algo__epsilon=0.4)
    obs = torch.randn(1, 3, 4).expand(5000, 3, 4)
    greedy = runner.team.act(obs, deterministic=True)[0]
    for _ in range(3):
        other = (runner.team.act(obs)[0] != greedy).squeeze(-1).float()
        # A random choice is another one in four of five cases.
        torch.testing.assert_close(other.mean(0), torch.full((3,), 0.32), rtol=0, atol=0.03)
        assert (torch.corrcoef(other.T) - torch.eye(3)).abs().max() < 0.06


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 0.0), (1.0, 0.8)])
def test_epsilon_is_the_probability_of_a_random_choice(epsilon: float, share: float) -> None:
    runner = learners("had3qn", team_layout("discrete"), algo__epsilon=epsilon)
    obs = torch.randn(4000, 3, 4)
    other = runner.team.act(obs)[0] != runner.team.act(obs, deterministic=True)[0]
    assert other.float().mean().item() == pytest.approx(share, abs=0.02)


def test_critic_learns_at_the_joint_action_that_was_taken() -> None:
    runner = learners("had3qn", differing((3, 2)), algo__critic_lr=0.01)
    batch = random_batch(runner.layout, rows=16)
    batch.discounts.zero_()
    feed(runner, batch)
    first, joint = None, runner.critic.index(runner.critic.encode(batch))
    for _ in range(300):
        runner.train()
        loss = (runner.critic.network(batch.share_obs).gather(-1, joint) - batch.rewards).square().mean().item()
        first = loss if first is None else first
    assert loss < 0.02 * first


def test_values_in_absent_agents_states_do_not_teach_the_critic() -> None:
    results = []
    for noise in (0.0, 30.0):
        runner = learners("had3qn", differing((3, 2), "FP"))
        batch = random_batch(runner.layout, absent=0.4)
        for array in (batch.share_obs, batch.next_share_obs, batch.rewards, batch.discounts):
            array += noise * (1 - batch.valid)
        feed(runner, batch)
        runner.train_critic()
        results.append(parameters(runner)["critic"])
    assert torch.equal(*results)
