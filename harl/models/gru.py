"""Memory: gated recurrent units (Cho et al. 2014) between the base of a network and its head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from harl.models.forward_mode import LayerNorm
from harl.models.init import init_weight


def kept(hidden: Tensor, masks: Tensor) -> Tensor:
    """What is remembered of `hidden` where a mask of 0 says that the episode is another one now.

    The one place where memory ends. A product, so that nothing depends on how many environments there are.

    Args:
        hidden: hidden states (…, width).
        masks: broadcastable to them; 1 = the episode goes on, 0 = it ended before this step.
    """
    return hidden * masks


def gru_cell(given: tuple[Tensor, Tensor], remembered: Tensor, hidden: Tensor) -> Tensor:
    """One step of one layer: the next hidden state (…, width).

    Args:
        given: what the input adds to the reset and update gates (…, 2 width), and to the candidate (…, width).
        remembered: what the hidden state adds to all three (…, 3 width).
        hidden: the hidden state before the step (…, width).
    """
    width = hidden.shape[-1]
    gates_remembered, candidate_remembered = torch.split(remembered, [2 * width, width], dim=-1)
    reset, update = torch.sigmoid(given[0] + gates_remembered).chunk(2, dim=-1)
    candidate = torch.tanh(torch.addcmul(given[1], reset, candidate_remembered))
    return torch.lerp(candidate, hidden, update)


class GRU(nn.Module):
    """`layers` recurrent layers and a LayerNorm; names of parameters as in the original.

    torch's own module holds the weights, but the steps are taken here: a sequence of episodes is cut within, the hidden
    states of all steps are at hand, and differentiation in forward mode works on every device.
    """

    def __init__(self, width: int, layers: int, initialization: str) -> None:
        super().__init__()
        self.rnn = nn.GRU(width, width, num_layers=layers)
        self.norm = LayerNorm(width)
        for name, parameter in self.rnn.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
            else:
                init_weight(parameter, initialization, 1.0)

    def weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(3 width, width) weights of input and hidden state, and their biases (3 width,), in the order of `nn.GRU`."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        of_input, of_hidden, input_bias, hidden_bias = (getattr(self.rnn, f"{name}_l{layer}") for name in names)
        return of_input, of_hidden, input_bias, hidden_bias

    def forward(self, x: Tensor, hidden: Tensor, masks: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Go through S sequences of L steps.

        Args:
            x: features (S, L, width).
            hidden: hidden states (S, layers, width) before the first step of each sequence.
            masks: (S, L, 1), 0 where the episode ended before the step.

        Returns:
            Features (S, L, width), and the hidden states after each step, (L, S, width) for each layer.
        """
        x, by_step = x.transpose(0, 1), masks.transpose(0, 1).unbind(0)
        after: list[Tensor] = []
        for layer in range(self.rnn.num_layers):
            x = self._through(layer, x, hidden[:, layer], by_step)
            after.append(x)
        return self.norm(x).transpose(0, 1), after

    def _through(self, layer: int, x: Tensor, hidden: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
        of_input, of_hidden, input_bias, hidden_bias = self.weights(layer)
        width = hidden.shape[-1]
        gates, candidates = torch.split(functional.linear(x, of_input, input_bias), [2 * width, width], dim=-1)
        states = []
        for *given, mask in zip(gates.unbind(0), candidates.unbind(0), masks, strict=True):
            hidden = kept(hidden, mask)
            hidden = gru_cell((given[0], given[1]), torch.addmm(hidden_bias, hidden, of_hidden.t()), hidden)
            states.append(hidden)
        return torch.stack(states)
