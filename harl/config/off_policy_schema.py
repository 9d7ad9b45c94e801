"""Keys of the off-policy algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from harl.config.fields import COUNT, FRACTION, POSITIVE, STEPS, limits

PLAIN_ACTIVATIONS = ("sigmoid", "tanh", "relu", "leaky_relu", "selu", "hardswish", "identity")

_WIDTHS = limits(at_least=1, at_most=65_536)
_ACTIVATION = limits(choices=PLAIN_ACTIVATIONS)

_NO_MEMORY = (
    "off-policy algorithms learn from single transitions, without memory; happo, mappo, haa2c and hatrpo have it"
)
_NO_IMAGES = "networks of off-policy algorithms take vectors; happo, mappo, haa2c and hatrpo take images"
_ON_POLICY_ALONE = {
    "use_recurrent_policy": _NO_MEMORY,
    "use_naive_recurrent_policy": _NO_MEMORY,
    "recurrent_n": _NO_MEMORY,
    "data_chunk_length": _NO_MEMORY,
    "cnn_kernel_size": _NO_IMAGES,
    "cnn_stride": _NO_IMAGES,
}


@dataclass(frozen=True, kw_only=True)
class OffPolicyTrainConfig:
    """Length and shape of off-policy training."""

    num_env_steps: int = field(metadata=STEPS)
    """Budget in environment steps, summed over the parallel environments, warm-up included."""
    n_rollout_threads: int = field(metadata=COUNT)
    """Parallel training environments (N)."""
    warmup_steps: int = field(metadata=limits(at_least=0))
    """Environment steps with random legal actions before learning starts."""
    train_interval: int = field(metadata=COUNT)
    """Vector steps between two bouts of updates."""
    update_per_train: float = field(metadata=POSITIVE)
    """Updates for each vector step."""
    log_interval: int = field(metadata=STEPS)
    """Environment steps between two lines of the log."""
    use_linear_lr_decay: bool
    """Lower the learning rates linearly to 0."""


@dataclass(frozen=True, kw_only=True)
class OffPolicyModelConfig:
    """Networks of deterministic actors and of their critics."""

    refused: ClassVar[Mapping[str, str]] = _ON_POLICY_ALONE
    """Keys of on-policy networks that would have no effect, and why."""

    hidden_sizes: tuple[int, ...] = field(metadata=_WIDTHS)
    """Widths of the hidden layers."""
    activation_func: str = field(metadata=_ACTIVATION)
    """Activation of the hidden layers."""
    final_activation_func: str = field(metadata=_ACTIVATION)
    """Activation behind the last layer of a policy with continuous actions."""


@dataclass(frozen=True, kw_only=True)
class SACModelConfig(OffPolicyModelConfig):
    """Networks of HASAC; the three keys below concern policies with discrete actions."""

    use_feature_normalization: bool
    """Layer normalisation of the input."""
    initialization_method: str = field(
        metadata=limits(
            choices=("orthogonal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_")
        )
    )
    """Function of torch.nn.init for the weights."""
    gain: float = field(metadata=POSITIVE)
    """Gain of the policy's last layer."""


@dataclass(frozen=True, kw_only=True)
class D3QNModelConfig:
    """Dueling networks."""

    refused: ClassVar[Mapping[str, str]] = _ON_POLICY_ALONE
    """Keys of on-policy networks that would have no effect, and why."""

    base_hidden_sizes: tuple[int, ...] = field(metadata=_WIDTHS)
    """Widths of the layers that both streams share."""
    dueling_v_hidden_sizes: tuple[int, ...] = field(metadata=_WIDTHS)
    """Widths of the layers of the value stream."""
    dueling_a_hidden_sizes: tuple[int, ...] = field(metadata=_WIDTHS)
    """Widths of the layers of the advantage stream."""
    base_activation_func: str = field(metadata=_ACTIVATION)
    """Activation of the shared layers."""
    dueling_v_activation_func: str = field(metadata=_ACTIVATION)
    """Activation of the value stream."""
    dueling_a_activation_func: str = field(metadata=_ACTIVATION)
    """Activation of the advantage stream."""


@dataclass(frozen=True, kw_only=True)
class OffPolicyAlgoConfig:
    """What every off-policy algorithm has."""

    name: str
    """Which algorithm it is."""
    lr: float = field(metadata=FRACTION)
    """Learning rate of the actors."""
    critic_lr: float = field(metadata=FRACTION)
    """Learning rate of the critic."""
    opti_eps: float = field(metadata=limits(above=0, at_most=1))
    """Adam's epsilon."""
    gamma: float = field(metadata=FRACTION)
    """Discount factor of one step."""
    buffer_size: int = field(metadata=STEPS)
    """Transitions that the replay buffer holds."""
    batch_size: int = field(metadata=COUNT)
    """Transitions of one update."""
    polyak: float = field(metadata=limits(above=0, at_most=1))
    """How far the slow networks move at each update."""
    n_step: int = field(metadata=limits(at_least=1, at_most=10_000))
    """Steps of reward before the bootstrap."""
    policy_freq: int = field(metadata=COUNT)
    """Updates of the critic for one of the actors and of the slow networks."""
    share_param: bool
    """One actor for all agents."""
    fixed_order: bool
    """HA: update agents by index, not in a random order."""
    time_limit: str = field(metadata=limits(choices=("bootstrap", "ignore")))
    """What the end of an episode by a time limit means."""
    save_replay: bool
    """Save the replay buffer with every checkpoint."""


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(OffPolicyAlgoConfig):
    """HADDPG and MADDPG."""

    expl_noise: float = field(metadata=limits(at_least=0, at_most=10))
    """Spread of the exploration noise, in half-ranges of each action dimension."""


@dataclass(frozen=True, kw_only=True)
class TD3Config(DDPGConfig):
    """HATD3 and MATD3."""

    policy_noise: float = field(metadata=limits(at_least=0, at_most=10))
    """Spread of the noise on next actions, in half-ranges."""
    noise_clip: float = field(metadata=limits(at_least=0, at_most=10))
    """Largest size of that noise, in half-ranges."""


@dataclass(frozen=True, kw_only=True)
class SACConfig(OffPolicyAlgoConfig):
    """HASAC."""

    auto_alpha: bool
    """Learn the temperature, from 1."""
    alpha: float = field(metadata=POSITIVE)
    """The fixed temperature."""
    alpha_lr: float = field(metadata=FRACTION)
    """Learning rate of the temperature."""
    target_entropy_ratio: float = field(metadata=limits(at_least=0, at_most=1))
    """Target entropy of discrete choices, as a fraction of the log of the number of legal ones."""
    use_huber_loss: bool
    """Huber loss, or squared loss, for the values."""
    huber_delta: float = field(metadata=POSITIVE)
    """Error at which the Huber loss turns linear."""
    use_valuenorm: bool
    """Normalise the critic's targets."""


@dataclass(frozen=True, kw_only=True)
class D3QNConfig(OffPolicyAlgoConfig):
    """HAD3QN."""

    epsilon: float = field(metadata=FRACTION)
    """Probability of a random legal action."""
    regress_at: str = field(metadata=limits(choices=("all", "greedy")))
    """At which of its agent's choices a local network learns."""
    double_q: bool
    """Next actions of the online local networks, not of the slow ones."""
