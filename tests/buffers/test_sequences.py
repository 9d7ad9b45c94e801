"""Sequences and chunks of a rollout, hidden states in the buffer, and images kept as bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harl.algorithms.base import minibatches
from harl.buffers.rollout import ActorData, RolloutBuffer
from harl.buffers.sequences import Recurrence
from harl.envs.api import EnvStep, Layout
from tests.algorithms.rollouts import hetero_layout, team_layout
from tests.buffers.test_rollout import step
from tests.models.test_cnn import image_layout

T, N, A, CHUNK = 6, 3, 3, 2
MEMORY = Recurrence(layers=2, width=5, chunk_length=CHUNK)


def numbered(layout: Layout | None = None, recurrence: Recurrence = MEMORY) -> RolloutBuffer:
    """A buffer in which every number is another one."""
    buffer = RolloutBuffer(layout or team_layout(), T, N, recurrence=recurrence)
    for name in (
        "obs",
        "share_obs",
        "actions",
        "action_log_probs",
        "hidden",
        "critic_hidden",
        "returns",
        "value_preds",
    ):
        tensor = getattr(buffer, name)
        tensor.copy_(torch.arange(tensor.numel()).view_as(tensor))
    assert buffer.masks is not None
    buffer.masks.copy_(torch.arange(buffer.masks.numel()).view_as(buffer.masks) % 2)
    return buffer


def test_sequence_is_one_environment_and_chunk_a_part_of_it() -> None:
    buffer, advantages = numbered(), torch.arange(float(T * N)).view(T, N, 1)
    whole = buffer.actor_data(1, advantages)
    assert whole.obs.shape == (N, T, 4)
    assert torch.equal(whole.obs[2, 3], buffer.obs[3, 2, 1])
    cut = whole.chunks()
    assert cut.obs.shape == (N * T // CHUNK, CHUNK, 4)
    assert buffer.hidden is not None
    assert buffer.masks is not None
    assert cut.masks is not None
    assert cut.first_hidden is not None
    for n in range(N):
        for k in range(T // CHUNK):
            row = n * (T // CHUNK) + k
            for t in range(CHUNK):
                at = k * CHUNK + t
                assert torch.equal(cut.obs[row, t], buffer.obs[at, n, 1])
                assert torch.equal(cut.actions[row, t], buffer.actions[at, n, 1])
                assert torch.equal(cut.log_probs[row, t], buffer.action_log_probs[at, n, 1])
                assert cut.advantages[row, t] == advantages[at, n]
                assert cut.masks[row, t] == buffer.masks[at, n]
            assert torch.equal(cut.first_hidden[row], buffer.hidden[k * CHUNK, n, 1])


@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_sequences_of_the_critic(state_type: str) -> None:
    buffer = numbered(team_layout(state_type=state_type))
    cut = buffer.critic_data().chunks()
    each = A if state_type == "FP" else 1
    assert cut.share_obs.shape == (N * each * T // CHUNK, CHUNK, 6)
    assert buffer.critic_hidden is not None
    assert cut.first_hidden is not None
    n, agent, k, t = 2, each - 1, 1, 1
    row, at = (n * each + agent) * (T // CHUNK) + k, k * CHUNK + t
    place = (n, agent) if each > 1 else (n,)
    assert torch.equal(cut.share_obs[row, t], buffer.share_obs[(at, *place)])
    assert torch.equal(cut.returns[row, t], buffer.returns[(at, *place)])
    assert torch.equal(cut.value_preds[row, t], buffer.value_preds[(at, *place)])
    assert torch.equal(cut.first_hidden[row], buffer.critic_hidden[(k, *place)])
    assert buffer.masks is not None
    assert cut.masks is not None
    assert cut.masks[row, t] == buffer.masks[at, n]


def test_what_is_written_by_value_is_in_the_buffer() -> None:
    for state_type in ("EP", "FP"):
        buffer = numbered(team_layout(state_type=state_type))
        buffer.by_value(buffer.value_preds).fill_(-1.0)
        assert buffer.value_preds.unique().tolist() == [-1.0]


def test_D_02_pooled_agents_stand_one_after_the_other() -> None:
    buffer, advantages = numbered(), torch.zeros(T, N, 1)
    pooled = ActorData.concatenate([buffer.actor_data(i, advantages) for i in range(A)]).chunks()
    per_agent = N * T // CHUNK
    for i in range(A):
        own = buffer.actor_data(i, advantages).chunks()
        for field in dataclasses.fields(ActorData):
            ours, theirs = getattr(pooled, field.name), getattr(own, field.name)
            assert theirs is None or torch.equal(ours[i * per_agent : (i + 1) * per_agent], theirs), field.name


@pytest.mark.parametrize("chunk", [1, 2, 3, 6])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_NUM_05_no_step_is_lost_in_minibatches_of_chunks(chunk: int, count: int) -> None:
    buffer = numbered(recurrence=Recurrence(1, 5, chunk))
    buffer.obs[:-1, :, 0, 0] = torch.arange(float(T * N)).view(T, N)
    data = buffer.actor_data(0, torch.zeros(T, N, 1)).chunks()
    seen = []
    for index in minibatches(len(data.obs), count, torch.Generator().manual_seed(0), torch.device("cpu")):
        seen += data.rows(index).obs[..., 0].flatten().tolist()
    assert sorted(seen) == list(range(T * N))


def test_agents_that_differ_keep_their_widths() -> None:
    buffer = numbered(hetero_layout())
    data = buffer.actor_data(2, torch.zeros(T, N, 1)).chunks()
    assert data.obs.shape == (9, 2, 11)
    assert data.available_actions is not None
    assert data.available_actions.shape == (9, 2, 5)


def test_masks_say_where_episodes_begin_and_the_next_rollout_remembers() -> None:
    buffer = RolloutBuffer(team_layout(), 2, 2, recurrence=Recurrence(1, 5, 1))
    assert buffer.hidden is not None
    assert buffer.masks is not None
    assert buffer.critic_hidden is not None
    buffer.masks[0] = 1.0
    buffer.set_first(step(buffer, 1.0, [False, False]))
    buffer.insert(0, step(buffer, 2.0, [False, True]))
    buffer.insert(1, step(buffer, 3.0, [True, False]))
    assert buffer.masks[..., 0].tolist() == [[0, 0], [1, 0], [0, 1]]
    buffer.hidden[2], buffer.critic_hidden[2] = 7.0, 8.0
    buffer.after_update()
    assert buffer.masks[0, :, 0].tolist() == [0, 1]
    assert buffer.hidden[0].unique().tolist() == [7.0]
    assert buffer.critic_hidden[0].unique().tolist() == [8.0]


def test_saved_in_the_middle_of_a_rollout() -> None:
    buffer, other = numbered(), RolloutBuffer(team_layout(), T, N, recurrence=MEMORY)
    other.set_state(buffer.get_state(4))
    for name in ("hidden", "masks", "obs"):
        assert torch.equal(getattr(other, name)[:5], getattr(buffer, name)[:5]), name
        assert not torch.equal(getattr(other, name)[5:], getattr(buffer, name)[5:]), name
    assert buffer.critic_hidden is not None
    assert other.critic_hidden is not None
    assert torch.equal(other.critic_hidden[0], buffer.critic_hidden[0])


def test_buffer_without_memory_has_nothing_of_it() -> None:
    buffer = RolloutBuffer(team_layout(), T, N)
    assert buffer.hidden is buffer.masks is buffer.critic_hidden is None
    data = buffer.actor_data(0, torch.zeros(T, N, 1))
    assert data.hidden is data.masks is None
    assert data.chunks() is data
    assert not {"hidden", "masks", "critic_hidden"} & set(buffer.get_state(3))


# Images.


def test_DTY_02_images_of_bytes_take_a_byte_a_pixel() -> None:
    box, steps = spaces.Box(0, 255, (84, 84, 3), np.uint8), 10_000
    layout = Layout(("agent_0",), (box,), (spaces.Discrete(4),), (3, 84, 84), (3, 84, 84), "EP", False)
    # The device without memory: only sizes are looked at.
    buffer = RolloutBuffer(layout, steps, 1, "meta")
    size = buffer.obs.numel() * buffer.obs.element_size()
    assert size == (steps + 1) * 84 * 84 * 3
    assert size == pytest.approx(212e6, rel=0.01)
    assert buffer.share_obs.dtype == torch.uint8
    assert RolloutBuffer(team_layout(), 2, 2).obs.dtype == torch.float32


def test_bytes_arrive_as_they_were_given() -> None:
    layout = image_layout()
    buffer = RolloutBuffer(layout, 1, 2)
    images = np.arange(2 * 2 * 64, dtype=np.float32).reshape(2, 2, 1, 8, 8)
    states = np.broadcast_to(images.reshape(2, 1, 2, 8, 8), (2, 2, 2, 8, 8))
    record = EnvStep(
        obs=images,
        share_obs=states,
        available_actions=None,
        active=np.ones((2, 2, 1), np.float32),
        rewards=np.zeros((2, 2, 1), np.float32),
        terminated=np.zeros((2, 2), np.bool_),
        truncated=np.ones((2, 2), np.bool_),
        ended=np.array([False, True]),
        final_obs=images,
        final_share_obs=states,
    )
    buffer.set_first(record)
    buffer.insert(0, record)
    assert buffer.obs[1].flatten().tolist() == list(range(256))
    assert torch.equal(buffer.share_obs[0], torch.arange(256, dtype=torch.uint8).view(2, 2, 8, 8))
    ((_, _, rows),) = buffer.final_share_obs
    assert rows.dtype == torch.uint8
    assert torch.equal(rows, buffer.share_obs[0, 1:])
    assert buffer.actor_data(1, torch.zeros(1, 2, 1)).obs.shape == (2, 1, 8, 8)
