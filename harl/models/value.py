"""State values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harl.models.cnn import Images, make_base
from harl.models.gru import GRU
from harl.models.init import init_linear
from harl.models.mlp import MLPSpec


class VNet(nn.Module):
    """State values in the units of the value normaliser.

    Args:
        state: width of the central state, or what it looks like where it is an image.
        spec: the layers.
    """

    def __init__(self, state: int | Images, spec: MLPSpec) -> None:
        super().__init__()
        self.base = make_base(state, spec)
        width = self.base.output_dim
        self.rnn = GRU(width, spec.recurrent_layers, spec.initialization) if spec.recurrent_layers else None
        self.v_out = init_linear(nn.Linear(width, 1), spec.initialization, 1.0)

    def forward(self, share_obs: Tensor, hidden: Tensor | None = None, masks: Tensor | None = None) -> Tensor:
        """Values (B, 1) of states (B, …); with memory (S, L, 1) of S sequences of L states.

        Args:
            share_obs: the states.
            hidden, masks: with memory, the hidden states (S, layers, width) before the sequences, and what cuts them;
                see `GRU`.
        """
        features = self.base(share_obs)
        if self.rnn is not None:
            features, _ = self.rnn(features, hidden, masks)
        return self.v_out(features)  # type: ignore[no-any-return]

    def values_and_memory(self, share_obs: Tensor, hidden: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """Values (S, L, 1), and the hidden states after each step (S, L, layers, width)."""
        assert self.rnn is not None
        features, after = self.rnn(self.base(share_obs), hidden, masks)
        return self.v_out(features), torch.stack(after, dim=2).transpose(0, 1)
