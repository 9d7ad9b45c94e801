"""What the buffer hands to actors and critic."""

from __future__ import annotations

import numpy as np
import torch

from harl.buffers.rollout import RolloutBuffer
from harl.envs.api import EnvStep
from tests.algorithms.rollouts import hetero_layout, team_layout


def test_actor_rows_have_the_agents_own_widths() -> None:
    layout = hetero_layout()
    buffer = RolloutBuffer(layout, 5, 2)
    widths = []
    for i in range(4):
        data = buffer.actor_data(i, torch.zeros(5, 2, 1))
        masks = None if data.available_actions is None else data.available_actions.shape[1]
        widths.append((data.obs.shape[1], data.actions.shape[1], data.log_probs.shape[1], masks))
        assert len(data.obs) == len(data.advantages) == len(data.weights) == 10
    assert widths == [(3, 1, 1, 3), (7, 1, 1, 5), (11, 2, 2, 5), (4, 2, 2, None)]


def test_row_of_an_agent_is_its_step_and_environment() -> None:
    buffer = RolloutBuffer(team_layout(), 5, 2)
    buffer.obs.copy_(torch.arange(buffer.obs.numel()).view_as(buffer.obs))
    advantages = torch.arange(30.0).view(5, 2, 3, 1)
    data = buffer.actor_data(1, advantages)
    assert torch.equal(data.obs[2 * 3 + 1], buffer.obs[3, 1, 1])
    assert data.advantages[2 * 3 + 1] == advantages[3, 1, 1]


def test_weight_is_one_only_where_the_agent_was_there_and_decided() -> None:
    buffer = RolloutBuffer(team_layout(), 3, 1)
    buffer.active[1, 0, 2] = 0.0
    buffer.policy_mask[2, 0, 0] = 0.0
    # The last slot belongs to the next rollout.
    buffer.active[3] = 0.0
    assert buffer.weights()[:, 0, :, 0].tolist() == [[1, 1, 1], [1, 1, 0], [0, 1, 1]]


def test_critic_rows_one_for_the_team_or_one_for_each_agent() -> None:
    team = RolloutBuffer(team_layout(), 3, 2).critic_data()
    assert team.share_obs.shape == (6, 6)
    assert team.weights is None
    buffer = RolloutBuffer(team_layout(state_type="FP"), 3, 2)
    buffer.active[1, 0, 2] = 0.0
    each = buffer.critic_data()
    assert each.share_obs.shape == (18, 6)
    assert each.weights is not None
    assert each.weights.flatten().nonzero().numel() == 17
    assert each.weights[(1 * 2 + 0) * 3 + 2] == 0.0


def step(buffer: RolloutBuffer, number: float, ended: list[bool]) -> EnvStep:
    """A record whose arrays are all `number`."""
    N, A = buffer.num_envs, buffer.layout.num_agents
    final = np.full((N, A, 6), -number, np.float32) if any(ended) else None
    return EnvStep(
        obs=np.full((N, A, 4), number, np.float32),
        share_obs=np.full((N, A, 6), number, np.float32),
        available_actions=None,
        active=np.ones((N, A, 1), np.float32),
        rewards=np.full((N, A, 1), number, np.float32),
        terminated=np.zeros((N, A), np.bool_),
        truncated=np.repeat(np.array(ended)[:, None], A, 1),
        ended=np.array(ended),
        final_obs=None if final is None else final[..., :4],
        final_share_obs=final,
    )


def test_step_is_written_where_it_belongs_and_the_environments_arrays_are_copied() -> None:
    buffer = RolloutBuffer(team_layout(), 2, 2)
    buffer.set_first(step(buffer, 1.0, [False, False]))
    record = step(buffer, 2.0, [False, True])
    buffer.insert(0, record)
    record.obs[...] = record.rewards[...] = 99.0
    assert record.final_share_obs is not None
    record.final_share_obs[...] = 99.0
    assert buffer.obs[0].unique().tolist() == [1.0]
    assert buffer.obs[1].unique().tolist() == [2.0]
    assert buffer.rewards[0].unique().tolist() == [2.0]
    assert buffer.truncated[0].tolist() == [[False] * 3, [True] * 3]
    ((t, envs, rows),) = buffer.final_share_obs
    assert (t, envs.tolist(), rows.tolist()) == (0, [1], [[-2.0] * 6])


def test_slot_of_a_field_is_read_as_an_array() -> None:
    buffer = RolloutBuffer(team_layout(), 3, 2)
    buffer.insert(1, step(buffer, 7.0, [False, False]))
    for name in ("obs", "active"):
        np.testing.assert_array_equal(buffer.array(name, 2), getattr(buffer, name)[2].numpy())
    assert (buffer.array("obs", 2) == 7.0).all()


def test_next_rollout_begins_where_this_one_stopped() -> None:
    buffer = RolloutBuffer(team_layout(), 1, 2)
    buffer.set_first(step(buffer, 1.0, [False, False]))
    buffer.insert(0, step(buffer, 2.0, [True, True]))
    buffer.policy_mask.zero_()
    buffer.after_update()
    assert buffer.obs[0].unique().tolist() == buffer.share_obs[0].unique().tolist() == [2.0]
    assert buffer.final_share_obs == []
    assert buffer.policy_mask.unique().tolist() == [1.0]
