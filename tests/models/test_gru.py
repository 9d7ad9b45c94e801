"""Memory: the steps of a GRU, where it is cut, and several at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harl.models.forward_mode import change_along
from harl.models.gru import GRU, kept
from harl.models.mlp import MLPSpec
from harl.models.policy import StochasticPolicy
from harl.models.stacked import StackedPolicies
from harl.models.value import VNet
from tests.algorithms.rollouts import SPACES
from tests.models.test_stacked import AGENTS, ROWS, WIDTH, masks_for, numbers

S, L, H = 4, 6, 8


def gru(layers: int = 1) -> GRU:
    """One that has been away from its initial weights."""
    torch.manual_seed(0)
    made = GRU(H, layers, "orthogonal_")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def recurrent_policies(kind: str, layers: int = 1, hidden: tuple[int, ...] = (16, H)) -> list[StochasticPolicy]:
    torch.manual_seed(0)
    spec = MLPSpec(hidden, "relu", True, "orthogonal_", layers)
    made = [StochasticPolicy(WIDTH, SPACES[kind], spec, 1.0, 1.0, 0.5) for _ in range(AGENTS)]
    with torch.no_grad():
        for policy in made:
            for parameter in policy.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


@pytest.mark.parametrize("layers", [1, 3])
def test_equals_torch_where_nothing_ends(layers: int) -> None:
    made, x, hidden = gru(layers), torch.randn(S, L, H), torch.randn(S, layers, H)
    features, after = made(x, hidden, torch.ones(S, L, 1))
    states, last = made.rnn(x.transpose(0, 1), hidden.transpose(0, 1).contiguous())
    torch.testing.assert_close(features, made.norm(states).transpose(0, 1))
    torch.testing.assert_close(after[-1], states)
    torch.testing.assert_close(torch.stack([of_layer[-1] for of_layer in after]), last)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_sequence_of_two_episodes_is_two_episodes(layers: int) -> None:
    made, x, hidden = gru(layers), torch.randn(S, L, H), torch.randn(S, layers, H)
    masks = torch.ones(S, L, 1)
    masks[1, 4] = masks[2, 2] = 0.0
    together, _ = made(x, hidden, masks)
    for s, first_of_second in ((1, 4), (2, 2)):
        ones = torch.ones(1, L, 1)
        before, _ = made(x[s : s + 1, :first_of_second], hidden[s : s + 1], ones[:, :first_of_second])
        after, _ = made(x[s : s + 1, first_of_second:], torch.zeros(1, layers, H), ones[:, first_of_second:])
        torch.testing.assert_close(together[s : s + 1], torch.cat([before, after], dim=1))
    whole, _ = made(x, hidden, torch.ones(S, L, 1))
    torch.testing.assert_close(together[[0, 3]], whole[[0, 3]])
    assert not torch.allclose(together[1, 4:], whole[1, 4:])


def test_no_gradient_goes_back_over_the_end_of_an_episode() -> None:
    made, x, hidden = gru(), torch.randn(1, L, H, requires_grad=True), torch.randn(1, 1, H, requires_grad=True)
    masks = torch.ones(1, L, 1)
    masks[0, 3] = 0.0
    made(x, hidden, masks)[0][0, 3:].square().sum().backward()
    assert x.grad is not None
    assert hidden.grad is not None
    assert not x.grad[0, :3].any()
    assert not hidden.grad.any()
    assert x.grad[0, 3:].any(-1).all()


@pytest.mark.parametrize("ended", [[True], [False], [True, False], [True, True], [False, False]])
def test_NUM_12_only_the_rows_of_finished_environments_are_forgotten(ended: list[bool]) -> None:
    hidden = torch.randn(len(ended), 3, 2, H)
    masks = 1.0 - torch.tensor(ended, dtype=torch.float32).view(-1, 1, 1, 1)
    left = kept(hidden, masks)
    for n, over in enumerate(ended):
        assert torch.equal(left[n], torch.zeros_like(hidden[n]) if over else hidden[n])


def test_names_and_initial_weights_are_the_originals() -> None:
    torch.manual_seed(0)
    network = VNet(5, MLPSpec((16, H), "relu", True, "orthogonal_", 2))
    names = {name: parameter for name, parameter in network.named_parameters() if name.startswith("rnn.")}
    expected = {f"rnn.rnn.{kind}_{part}_l{i}" for kind in ("weight", "bias") for part in ("ih", "hh") for i in (0, 1)}
    assert set(names) == expected | {"rnn.norm.weight", "rnn.norm.bias"}
    for name, parameter in names.items():
        if name.startswith("rnn.rnn.bias"):
            assert not parameter.any()
        elif name.startswith("rnn.rnn.weight"):
            torch.testing.assert_close(parameter.t() @ parameter, torch.eye(H), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("layers", [1, 2])
def test_stacked_policies_step_as_each_policy_does(kind: str, layers: int) -> None:
    made = recurrent_policies(kind, layers)
    stacked = StackedPolicies(made)
    hidden = torch.randn(AGENTS, ROWS, layers, H)
    for _ in range(3):
        obs, masks = torch.randn(AGENTS, ROWS, WIDTH) * 3, masks_for(kind)
        distribution, after = stacked.remembering(obs, masks, hidden)
        for i, policy in enumerate(made):
            own = None if masks is None else masks[i].unsqueeze(1)
            alone = policy(obs[i].unsqueeze(1), own, hidden[i], torch.ones(ROWS, 1, 1))
            torch.testing.assert_close(numbers(distribution)[i], numbers(alone)[:, 0].detach(), rtol=1e-4, atol=1e-5)
            assert policy.rnn is not None
            _, states = policy.rnn(policy.base(obs[i].unsqueeze(1)), hidden[i], torch.ones(ROWS, 1, 1))
            torch.testing.assert_close(after[i], torch.stack(states, dim=2)[0].detach(), rtol=1e-4, atol=1e-5)
        hidden = after


def test_forward_mode_is_the_derivative() -> None:
    policy = recurrent_policies("box")[0].double()
    inputs = (torch.randn(S, L, WIDTH).double(), None, torch.randn(S, 1, H).double(), torch.ones(S, L, 1).double())
    inputs[3][1, 3] = 0.0
    direction = {name: torch.randn_like(parameter) for name, parameter in policy.named_parameters()}

    def mean_after(step: float) -> Tensor:
        with torch.no_grad():
            for name, parameter in policy.named_parameters():
                parameter.add_(direction[name], alpha=step)
            return numbers(policy(*inputs))

    change = change_along(policy, direction, inputs, numbers)
    forth, back = mean_after(1e-6), mean_after(-2e-6)
    torch.testing.assert_close(change, (forth - back) / 2e-6, rtol=1e-4, atol=1e-5)
