"""How the replay buffer stores, saves and refuses."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harl.buffers import replay
from harl.buffers.replay import ReplayBatch, ReplayBuffer
from harl.buffers.replay_records import available_memory
from harl.envs.api import EnvStep
from harl.experiment.plain_state import from_plain, to_plain
from tests.buffers.transitions import (
    World,
    assert_equal_batches,
    buffer_of,
    cut,
    image_layout,
    layout_of,
    no_op,
    still,
)


def test_what_is_stored_is_copied_and_carries_no_gradient_MEM01() -> None:
    layout = layout_of(has_masks=True)
    buffer = buffer_of(layout)
    world = World(layout, 2, ends=1.0)
    before, step = world.seen, world.step(buffer)
    stored = buffer.gather(torch.arange(2))
    for record in (before, step):
        for name in ("obs", "available_actions", "active", "rewards", "final_obs", "final_available_actions"):
            if getattr(record, name) is not None:
                getattr(record, name)[...] = 77.0
    after = buffer.gather(torch.arange(2))
    for field in fields(ReplayBatch):
        one, other = getattr(stored, field.name), getattr(after, field.name)
        if field.name in ("imitate", "teachers"):  # what is drawn from the replay alone is imitated by nobody
            assert one is other is None
            continue
        assert torch.equal(one, other), field.name
        assert not one.requires_grad
        assert one.is_contiguous()


class Costs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations of torch that are called, and how large what they make is."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.called: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.called.append(func.overloadpacket.__name__)
            self.largest = max(self.largest, *(t.numel() for t in torch.utils._pytree.tree_leaves(made)))
        return made


@pytest.mark.parametrize("n_step", [1, 3])
def test_PRF_03_and_P_2_a_sample_costs_its_own_rows_whatever_the_size_of_the_buffer(n_step: int) -> None:
    """What is stored are contiguous arrays without a graph, and nothing of the length of the buffer is made of them."""
    layout, costs = layout_of(has_masks=True), []
    for capacity in (40, 4000):
        buffer = buffer_of(layout, capacity=capacity, n_step=n_step)
        world = World(layout, 2, ends=0.1)
        for _ in range(capacity // 2):
            world.step(buffer)
        assert len(buffer) == capacity
        for rows in (*buffer._before._rows, *buffer._after._rows):
            assert len(rows) == capacity
            assert rows.is_contiguous()
            assert not rows.requires_grad
        mode = Costs()
        with mode:
            buffer.sample(8)
        costs.append((mode.called, mode.largest))
    assert costs[0] == costs[1]
    assert costs[1][1] < 4000


def test_rows_are_copied_as_they_are_whatever_they_hold() -> None:
    """The kernel that copies them is made for sums."""
    layout = layout_of(1, obs=7)
    buffer = buffer_of(layout, 6, 2)
    odd = np.array([np.nan, np.inf, -np.inf, 1e-42, -3.4e38, 2.0**-149, 0.1], np.float32)
    step = still(layout, [0.0, 0.0])
    step.obs[0, 0], step.obs[1, 0] = odd, -odd
    for _ in range(3):
        buffer.insert(step, no_op(layout, 2), step)
    batch = buffer.gather(torch.tensor([0, 3, 4, 4, 1]))
    for b, expected in enumerate((odd, -odd, odd, odd, -odd)):
        np.testing.assert_array_equal(batch.obs[0, b], expected)
        np.testing.assert_array_equal(batch.next_obs[0, b], expected)
    none = buffer.gather(torch.empty(0, dtype=torch.int64))
    assert none.obs.shape == (1, 0, 7)


def test_float64_becomes_float32_DTY01() -> None:
    layout = layout_of(2)
    buffer = buffer_of(layout)
    step = still(layout, [0.1, 0.2])
    wide = {name: getattr(step, name).astype(np.float64) for name in ("obs", "share_obs", "rewards", "active")}
    buffer.insert(replace(step, **wide), no_op(layout, 2).astype(np.float64) + 0.3, replace(step, **wide))
    batch = buffer.sample(4)
    tensors = [getattr(batch, field.name) for field in fields(ReplayBatch) if field.name != "index"]
    assert {tensor.dtype for tensor in tensors if tensor is not None} == {torch.float32}
    assert torch.equal(batch.actions, torch.full((2, 4, 1), 0.3))


def test_images_are_stored_as_bytes_DTY02() -> None:
    images, floats = image_layout((3, 84, 84)), image_layout((3, 84, 84), np.float32)
    array = 84 * 84 * 3 * 10_000
    assert array == 211_680_000
    # Observation and state, now and next: the state of one agent is its image.
    small = ReplayBuffer.estimate(layout_of(1, 0, 0, choices=2), 10_000)
    assert buffer_of(images, 10_000, 1).nbytes == 4 * array + small
    assert buffer_of(floats, 10_000, 1).nbytes == 4 * 4 * array + small


def test_images_of_any_rank_come_back_as_they_were_D15() -> None:
    layout = image_layout((3, 5, 6), agents=2)
    buffer = buffer_of(layout, 8, 2, 2)
    random = np.random.default_rng(0)
    obs = random.integers(0, 256, (4, 2, 2, 3, 5, 6)).astype(np.float32)
    state = np.broadcast_to(obs.reshape(4, 2, 1, 6, 5, 6), (4, 2, 2, 6, 5, 6))
    plain = still(layout_of(2), [0.0, 0.0])
    steps = [replace(plain, obs=obs[t], share_obs=state[t]) for t in range(4)]
    for t in range(3):
        buffer.insert(steps[t], no_op(layout, 2), steps[t + 1])
    batch = buffer.gather(torch.tensor([0, 3, 4]))
    assert batch.obs.shape == (2, 3, 3, 5, 6)
    assert batch.share_obs.shape == (3, 6, 5, 6)
    assert batch.obs.dtype == batch.next_share_obs.dtype == torch.float32
    for b, (t, e, later) in enumerate([(0, 0, 2), (1, 1, 3), (2, 0, 3)]):
        np.testing.assert_array_equal(batch.obs[:, b], obs[t, e])
        np.testing.assert_array_equal(batch.next_obs[:, b], obs[later, e])
        np.testing.assert_array_equal(batch.next_share_obs[b], state[later, e, 0])


@pytest.mark.parametrize("wrong", [0.5, -1.0, 256.0, np.nan])
def test_images_that_are_not_bytes_are_refused(wrong: float) -> None:
    layout = image_layout((1, 2, 2))
    buffer = buffer_of(layout, 4, 1)
    seen = replace(still(layout_of(1), [0.0]), obs=np.full((1, 1, 1, 2, 2), wrong, np.float32))
    with pytest.raises(ValueError, match=r"obs comes from an image space of uint8.*0 to 255"):
        buffer.insert(seen, no_op(layout, 1), seen)


def test_memory_is_estimated_and_refused_before_anything_is_allocated_MEM06(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of()
    buffer = buffer_of(layout, 1000, 2)
    assert buffer.nbytes == ReplayBuffer.estimate(layout, 1000)
    assert 0 < available_memory(torch.device("cpu")) <= psutil.virtual_memory().total
    monkeypatch.setattr(replay, "available_memory", lambda device: 8 * 2**30)
    monkeypatch.setattr(replay, "Records", lambda *args: pytest.fail("memory was taken"))
    with pytest.raises(ValueError, match=r"1,000,000,000 transitions takes [\d.]+ GiB.*8\.0 GiB.*at most [\d,]+ trans"):
        buffer_of(layout, 10**9, 20)
    with pytest.raises(ValueError, match=r"1,000,000 transitions takes 78\.\d GiB"):
        buffer_of(image_layout((3, 84, 84)), 10**6, 1)
    monkeypatch.undo()
    fits = 8 * 2**30 // (ReplayBuffer.estimate(layout, 1))
    monkeypatch.setattr(replay, "available_memory", lambda device: 8 * 2**30)
    ReplayBuffer.check_memory(layout, fits)
    with pytest.raises(ValueError, match=f"at most {fits:,}"):
        ReplayBuffer.check_memory(layout, fits + 1)


@pytest.mark.parametrize("taken", [2, 10, 23])
def test_a_saved_buffer_continues_to_the_bit(taken: int) -> None:
    layout = layout_of(state_type="FP", has_masks=True)
    buffer = buffer_of(layout, 31, 3, 4)
    world = World(layout, 3)
    for _ in range(taken):
        world.step(buffer)
    state, file = buffer.get_state(), io.BytesIO()
    assert [len(rows) for rows in (*state["before"], *state["after"])] == [len(buffer)] * 2
    torch.save(to_plain(state), file)
    file.seek(0)
    other = buffer_of(layout, 31, 3, 4)
    other.set_state(from_plain(torch.load(file, weights_only=True)))
    assert_equal_batches(buffer.sample(50), other.sample(50))
    for _ in range(9):
        world.step(buffer, other)
        assert len(other) == len(buffer)
        assert_equal_batches(buffer.sample(50), other.sample(50))
    # What was saved does not change with the buffer.
    third = buffer_of(layout, 31, 3, 4)
    third.set_state(state)
    file.seek(0)
    other.set_state(from_plain(torch.load(file, weights_only=True)))
    rows = torch.arange(len(third))
    assert_equal_batches(third.gather(rows), other.gather(rows))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"capacity": 60}, "transitions is 40 there, 60 here"),
        ({"num_envs": 4}, "num_envs is 2 there, 4 here"),
        ({"n_step": 2}, "n_step is 1 there, 2 here"),
        ({"gamma": 0.5}, "gamma is 0.9 there, 0.5 here"),
        ({"layout": layout_of(obs=9)}, "record is"),
    ],
)
def test_a_saved_buffer_of_other_settings_is_refused(change: dict[str, Any], text: str) -> None:
    state = buffer_of(layout_of()).get_state()
    values: dict[str, Any] = {"layout": layout_of()} | change
    with pytest.raises(ValueError, match=f"does not fit this one.*{text}"):
        buffer_of(**values).set_state(state)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"capacity": 3, "num_envs": 4}, r"3 transitions has no room for one step of 4 environments.*at least 4"),
        ({"capacity": 0}, r"0 transitions has no room"),
        ({"n_step": 0}, r"n_step is 0; it must be at least 1"),
        ({"gamma": 1.5}, r"gamma is 1\.5; it must be from 0 to 1"),
        ({"reward": "sum"}, r"reward is 'sum'; allowed: shared_sum, shared_mean, individual"),
        ({"reward": "individual"}, r"'individual' needs .* FP"),
        ({"time_limit": "mask"}, r"time_limit is 'mask'; allowed with a replay buffer: bootstrap, ignore"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        buffer_of(layout_of(), **change)


def without(name: str) -> Callable[[EnvStep], EnvStep]:
    return lambda step: replace(step, **{name: None})


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (without("final_obs"), r"ended in environments \[0 1\], but final_obs is None"),
        (without("final_share_obs"), r"but final_share_obs is None"),
        (without("final_available_actions"), r"but final_available_actions is None"),
        (without("available_actions"), r"this step has none"),
        (lambda step: replace(step, final_obs=step.final_obs, obs=step.obs[:, :, :2]), r"shape"),
    ],
)
def test_steps_that_lack_something_are_refused(spoil: Callable[[EnvStep], EnvStep], text: str) -> None:
    layout = layout_of(has_masks=True)
    buffer = buffer_of(layout)
    step = spoil(cut(layout, [0.0, 0.0], [1.0, 1.0]))
    with pytest.raises(ValueError, match=text):
        buffer.insert(still(layout, [0.0, 0.0]), no_op(layout, 2), step)
    assert len(buffer) == 0


def test_actions_of_another_shape_are_refused_not_stretched() -> None:
    layout = layout_of()
    buffer = buffer_of(layout)
    step = still(layout, [0.0, 0.0])
    with pytest.raises(ValueError, match=r"actions has shape \(2, 1, 1\), expected \(2, 3, 1\)"):
        buffer.insert(step, np.zeros((2, 1, 1), np.float32), step)


GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_buffer_that_is_written_through_tensors_gives_the_same(device: str) -> None:
    layout = layout_of(state_type="FP", has_masks=True)
    host, other = buffer_of(layout, 31, 3, 4), buffer_of(layout, 31, 3, 4, device=device)
    # As where there are no numpy views of the memory.
    other._before._arrays.clear()
    other._after._arrays.clear()
    world = World(layout, 3)
    for _ in range(17):
        world.step(host, other)
    rows = torch.arange(len(host))
    ours, theirs = host.gather(rows), other.gather(rows.to(device))
    for field in fields(ReplayBatch):
        tensor: torch.Tensor | None = getattr(theirs, field.name)
        if field.name in ("imitate", "teachers"):
            assert tensor is None
            continue
        assert tensor is not None
        assert tensor.device.type == device
        assert torch.equal(getattr(ours, field.name), tensor.cpu()), field.name
    again = buffer_of(layout, 31, 3, 4, device=device)
    again.set_state(host.get_state())
    assert_equal_batches(again.sample(9), other.sample(9))
