"""What `harl.bench` counts and compares; how fast anything is, no test says."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import harl
from harl.algorithms.actors.trpo import ITERATIONS
from harl.bench import off_policy, on_policy, sampling
from harl.bench.__main__ import main
from harl.bench.floor import Factor, Product, again, happo_on_spread, operations, products_of
from harl.config import ALGO_SCHEMAS

OFF_POLICY = ("haddpg", "hatd3", "hasac", "had3qn", "maddpg", "matd3")
SMALL = ("env=mpe", "device.name=cpu", "eval.use_eval=false", "logger.progress=off", "logger.tensorboard=false")
ROWS, AGENTS, OBS, STATE, ACTION = 8, 3, 18, 54, 5
"""Rows of a batch, and what simple_spread is like."""


def made_for(algo: str, folder: Any, *overrides: str) -> Any:
    """A runner with narrow networks."""
    narrow = (
        ["model.base_hidden_sizes=[7]", "model.dueling_v_hidden_sizes=[6]", "model.dueling_a_hidden_sizes=[9]"]
        if algo == "had3qn"
        else ["model.hidden_sizes=[7,6]"]
    )
    few = ["train.n_rollout_threads=2"]
    if algo in OFF_POLICY:
        few += [f"algo.batch_size={ROWS}", "algo.buffer_size=100", "train.warmup_steps=0"]
        few += [f"env.continuous_actions={algo != 'had3qn'}"]
    return harl.make_runner([f"algo={algo}", *SMALL, *narrow, *few, f"output_dir={folder}", *overrides])


def forward(widths: Sequence[int], rows: int = ROWS) -> int:
    """Operations of a network's forward pass."""
    return sum(2 * rows * before * after for before, after in itertools.pairwise(widths))


def backward(widths: Sequence[int], rows: int = ROWS) -> int:
    """Operations of the gradient of all weights: nothing asks for that of the inputs."""
    return 2 * forward(widths, rows) - forward(widths[:2], rows)


# The counting.


def test_forward_and_backward_of_a_network_by_hand() -> None:
    network = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2))
    inputs = torch.ones(5, 4)
    made = products_of(lambda: network(inputs).sum().backward())
    assert operations(made) == 2 * 5 * (4 * 7 + 7 * 2) + 2 * 5 * (4 * 7 + 7 * 2) + 2 * 5 * 7 * 2
    assert made[0] == Product(Factor((5, 4), (4, 1)), Factor((4, 7), (1, 4)))
    assert len(made) == 2 + 3


def test_other_work_is_no_product() -> None:
    x = torch.ones(5, 4)
    assert products_of(lambda: (x * x).softmax(-1).sum() + torch.cat([x, x]).norm()) == []


def test_stacks_of_matrices_and_vectors_are_counted() -> None:
    left, right = torch.ones(3, 5, 4), torch.ones(3, 4, 2)
    assert operations(products_of(lambda: torch.bmm(left, right))) == 3 * 2 * 5 * 4 * 2
    assert operations(products_of(lambda: torch.baddbmm(torch.ones(3, 1, 2), left, right))) == 3 * 2 * 5 * 4 * 2
    assert operations(products_of(lambda: left[0] @ right[0, :, 0])) == 2 * 5 * 4


def test_made_again_they_are_the_same_products_and_nothing_else_is_done() -> None:
    network = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2))
    stack = torch.ones(3, 5, 4)
    made = products_of(lambda: (network(torch.ones(5, 4)).sum().backward(), torch.bmm(stack, stack.transpose(1, 2))))
    multiply = again(made)
    assert products_of(multiply) == made
    called: set[str] = set()

    class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.add(func.overloadpacket.__name__)
            return func(*args, **kwargs)

    with Calls():  # type: ignore[no-untyped-call]
        multiply()
    assert called == {"mm", "bmm"}


def test_calibration_is_the_update_that_was_measured_elsewhere() -> None:
    """3 actors 18-128-128-5 and a critic 54-128-128-1, 5 epochs forward and backward, 2 evaluations an actor."""
    actor, critic = [18, 128, 128, 5], [54, 128, 128, 1]
    expected = 3 * (7 * forward(actor, 40) + 5 * backward(actor, 40)) + 5 * (forward(critic, 40) + backward(critic, 40))
    assert operations(products_of(lambda: happo_on_spread(40))) == expected


# What an update of each algorithm is made of.


def of_one_update(algo: str) -> int:
    """Operations of an update, counted by hand; with a delayed policy, of the mean one."""
    critic, rest = [STATE + AGENTS * ACTION, 7, 6, 1], [7, 6, 1]
    actor = [OBS, 7, 6, ACTION]
    count = 1 if algo.endswith("ddpg") else 2
    asked = 2 if algo == "hasac" else 1
    follow = AGENTS * forward(actor)
    target, learn = count * forward(critic), count * (forward(critic) + backward(critic))
    # The states' part of the first layer is the same for all agents; the gradient goes on to the joint action alone.
    looked = asked * forward([STATE, 7])
    judged = asked * 2 * (forward([AGENTS * ACTION, 7]) + forward(rest))
    improve = AGENTS * (forward(actor) + judged + backward(actor))
    if algo == "hasac":  # two heads of the features: means and spreads
        head = forward([6, ACTION])
        follow += AGENTS * head
        improve += AGENTS * 3 * head
    sequential = 0
    if not algo.startswith("ma"):  # as they were, for those before; as they are, for those after
        sequential = 2 * (AGENTS - 1) * (forward(actor) + (forward([6, ACTION]) if algo == "hasac" else 0))
    slower = 2 if algo.endswith("td3") else 1
    return follow + target + learn + (looked + improve + sequential) // slower


@pytest.mark.parametrize("algo", ["haddpg", "hatd3", "hasac", "maddpg", "matd3"])
def test_products_of_an_off_policy_update_by_hand(tmp_path: Any, algo: str) -> None:
    """Nothing is multiplied twice, and nothing is left out of the floor."""
    runner = made_for(algo, tmp_path)
    result = off_policy.measure(runner, 1)
    runner.close()
    assert round(result["operations"] * 1e9) == of_one_update(algo)


def test_products_of_an_update_of_had3qn_by_hand(tmp_path: Any) -> None:
    def dueling(inputs: int, outputs: int) -> tuple[int, int]:
        base, heads = [inputs, 7], ([7, 6, 1], [7, 9, outputs])
        there = forward(base) + sum(forward(head) for head in heads)
        return there, forward(base) + 2 * sum(forward(head) for head in heads)

    local, local_back = dueling(OBS, ACTION)
    joint, joint_back = dueling(STATE, ACTION**AGENTS)
    follow, sequential = AGENTS * local, (AGENTS - 1) * local
    expected = follow + joint + (joint + joint_back) + joint + sequential + AGENTS * (local + local_back)
    runner = made_for("had3qn", tmp_path)
    result = off_policy.measure(runner, 1)
    runner.close()
    assert round(result["operations"] * 1e9) == expected


@pytest.mark.parametrize("algo", ["happo", "haa2c", "mappo", "hatrpo"])
def test_products_of_an_on_policy_update_by_hand(tmp_path: Any, algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of each actor over the rollout for each epoch, looks for the factor M, the critic's passes, its values.

    The normalisation of what is observed learns too, so the gradient goes on through the first layer.
    """
    runner = made_for(algo, tmp_path, "train.episode_length=10", "algo.time_limit=mask")
    made: list[list[Product]] = []

    def noting(products: list[Product]) -> Callable[[], None]:
        made.append(products)
        return lambda: None

    monkeypatch.setattr(on_policy, "again", noting)
    on_policy.measure(runner, 1)
    runner.close()
    collect, update = made
    rows, actor, critic = 20, [OBS, 7, 6, ACTION], [STATE, 7, 6, 1]
    # Before acting, each network's normalisations are worked into the next layer's bias, which is a row.
    assert operations(collect) == AGENTS * forward(actor, rows) + len(runner.team.networks) * forward(actor, 1)
    of_critic = runner.algo.critic_epoch * 3 * forward(critic, rows) + forward(critic, rows + 2)
    of_actors = operations(update) - of_critic
    there = AGENTS * forward(actor, rows)
    looks = 0 if algo == "mappo" else (AGENTS - 1) * forward(actor, rows)  # at those whom others come after
    if algo == "hatrpo":
        # Looked at before and after, a gradient, the graph of ten products; then attempts of the search, and M.
        assert of_actors >= (2 + 3 + 1 + 3 * ITERATIONS) * there + looks
        assert of_actors % forward(actor, rows) == 0
    else:
        assert of_actors == runner.actors[0].epochs * 3 * there + looks


# The command.


@pytest.mark.parametrize("algo", ALGO_SCHEMAS)
def test_every_algorithm_has_a_floor(tmp_path: Any, algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [f"algo={algo}", "env=mpe", "device.name=cpu", "bench.iterations=1", "train.n_rollout_threads=2"]
    if algo in OFF_POLICY:
        overrides += ["algo.batch_size=8", "algo.buffer_size=100", f"env.continuous_actions={algo != 'had3qn'}"]
    else:
        overrides += ["train.episode_length=25"]
    assert main(overrides) == 0
    out = capsys.readouterr().out
    numbers = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    parts = ("update", "floor") if algo in OFF_POLICY else ("collect", "update", "loop", "floor of loop")
    assert all(numbers[part] > 0 for part in parts)
    assert "matrix products" in out
    assert "scaled to this machine" in out
    assert "interrupted" not in out, "a bench is no run"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("bench.iterations=0", "a whole number from 1 on"),
        ("bench.iteration=3", "the one key of bench is bench.iterations"),
        ("algo=hapo", "happo"),
    ],
)
def test_wrong_arguments_are_refused(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed]) == 2
    assert said in capsys.readouterr().err


# The replay buffer.


def test_sampling_is_timed_from_a_small_and_a_large_buffer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sampling, "SIZES", (40, 400))
    monkeypatch.setattr(sampling, "ROUNDS", 2)
    buffers = []
    monkeypatch.setattr(sampling, "draw", lambda runner, buffer, between: buffers.append(buffer) or len(buffer) / 10)
    assert sampling.main(["algo=haddpg", "env.continuous_actions=true", "algo.batch_size=8"]) == 0
    assert [len(buffer) for buffer in buffers] == [40, 400] * 6
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == {"alone": [4, 40, 10], "in training": [4, 40, 10]}


def test_a_drawn_batch_is_timed_without_what_is_between(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def pass_for(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(sampling.time, "perf_counter", lambda: clock[0])
    with contextlib.closing(made_for("haddpg", tmp_path)) as runner:
        runner.start()
        buffer = sampling.filled(runner, 40)
        monkeypatch.setattr(buffer, "sample", lambda batch_size: pass_for(1.0))
        assert sampling.draw(runner, buffer, lambda: pass_for(100.0)) == 1e6
    assert clock[0] == sampling.DRAWS * 101


def test_only_a_replay_buffer_is_sampled(capsys: pytest.CaptureFixture[str]) -> None:
    assert sampling.main(["algo=happo"]) == 2
    assert "algo=happo: it has no replay buffer; those that have: haddpg" in capsys.readouterr().err


@pytest.mark.parametrize("bench", [main, sampling.main])
def test_people_are_not_timed_by_the_way(bench: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["algo=haddpg", "env.continuous_actions=true", "hitl=web", "hitl.port=0"]) == 2
    assert "timed without people" in capsys.readouterr().err
