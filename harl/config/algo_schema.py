"""Keys that concern the algorithm: training, networks, evaluation, and the algorithm itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from harl.config.fields import COUNT, FRACTION, POSITIVE, STEPS, limits
from harl.config.off_policy_schema import (
    D3QNConfig,
    D3QNModelConfig,
    DDPGConfig,
    OffPolicyAlgoConfig,
    OffPolicyModelConfig,
    OffPolicyTrainConfig,
    SACConfig,
    SACModelConfig,
    TD3Config,
)

ACTIVATIONS = ("sigmoid", "tanh", "relu", "leaky_relu", "selu")
INITIALIZATIONS = ("orthogonal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length and shape of on-policy training."""

    num_env_steps: int = field(metadata=STEPS)
    """Budget in environment steps, summed over the parallel environments."""
    n_rollout_threads: int = field(metadata=COUNT)
    """Parallel training environments (N)."""
    episode_length: int = field(metadata=COUNT)
    """Steps that each environment takes between two updates (T)."""
    log_interval: int = field(metadata=STEPS)
    """Environment steps between two lines of the log."""
    use_linear_lr_decay: bool
    """Lower the learning rates linearly to 0."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Networks of on-policy actors and critics."""

    hidden_sizes: tuple[int, ...] = field(metadata=limits(at_least=1, at_most=65_536))
    """Widths of the hidden layers."""
    activation_func: str = field(metadata=limits(choices=ACTIVATIONS))
    """Activation of the hidden layers."""
    use_feature_normalization: bool
    """Layer normalisation of the input."""
    initialization_method: str = field(metadata=limits(choices=INITIALIZATIONS))
    """Function of torch.nn.init for the weights."""
    gain: float = field(metadata=POSITIVE)
    """Gain of the policy's last layer."""
    std_x_coef: float = field(metadata=POSITIVE)
    """Divides the parameter of the standard deviation before the sigmoid."""
    std_y_coef: float = field(metadata=POSITIVE)
    """The largest standard deviation."""
    use_recurrent_policy: bool
    """GRU after the hidden layers, learning from chunks of the rollout."""
    use_naive_recurrent_policy: bool
    """GRU after the hidden layers, learning from the rollout of each environment as a whole."""
    recurrent_n: int = field(metadata=limits(at_least=1, at_most=64))
    """Layers of the GRU."""
    data_chunk_length: int = field(metadata=COUNT)
    """Steps of a chunk."""
    cnn_kernel_size: int = field(metadata=limits(at_least=1, at_most=1024))
    """Side of the convolution's kernel."""
    cnn_stride: int = field(metadata=limits(at_least=1, at_most=1024))
    """Step of the convolution's kernel."""

    @property
    def is_recurrent(self) -> bool:
        """Whether the networks have memory."""
        return self.use_recurrent_policy or self.use_naive_recurrent_policy


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation during training."""

    use_eval: bool
    """Whether to evaluate at all."""
    interval: int = field(metadata=STEPS)
    """Environment steps between two evaluations."""
    at_start: bool
    """Evaluate also before the first update."""
    n_eval_rollout_threads: int = field(metadata=COUNT)
    """Parallel evaluation environments."""
    eval_episodes: int = field(metadata=COUNT)
    """Episodes per evaluation."""
    dump_metrics: bool
    """Write the steps of each evaluation to a CSV file."""


@dataclass(frozen=True, kw_only=True)
class OnPolicyAlgoConfig:
    """What every on-policy algorithm has."""

    name: str
    """Which algorithm it is."""
    critic_lr: float = field(metadata=FRACTION)
    """Learning rate of the critic."""
    opti_eps: float = field(metadata=limits(above=0, at_most=1))
    """Adam's epsilon."""
    weight_decay: float = field(metadata=FRACTION)
    """Adam's weight decay."""
    critic_epoch: int = field(metadata=COUNT)
    """Passes of the critic over the rollout."""
    use_clipped_value_loss: bool
    """Clip the value's change in the loss."""
    clip_param: float = field(metadata=limits(above=0, at_most=1))
    """Largest change of the clipped value; with PPO of the ratio, too."""
    critic_num_mini_batch: int = field(metadata=COUNT)
    """Slices of the rollout in each pass of the critic."""
    value_loss_coef: float = field(metadata=POSITIVE)
    """Factor of the value loss."""
    use_max_grad_norm: bool
    """Scale gradients down to `max_grad_norm`."""
    max_grad_norm: float = field(metadata=POSITIVE)
    """Largest norm of a network's gradient."""
    use_gae: bool
    """Generalised advantage estimation, or plain discounted returns."""
    gamma: float = field(metadata=FRACTION)
    """Discount factor of one step."""
    gae_lambda: float = field(metadata=FRACTION)
    """Lambda of the advantage estimation."""
    use_huber_loss: bool
    """Huber loss, or squared loss, for the values."""
    huber_delta: float = field(metadata=POSITIVE)
    """Error at which the Huber loss turns linear."""
    use_policy_active_masks: bool
    """Leave agents that are gone out of the policy loss and the entropy."""
    action_aggregation: str = field(metadata=limits(choices=("prod", "mean")))
    """How the ratios of an action's components are joined."""
    share_param: bool
    """One actor for all agents."""
    fixed_order: bool
    """HA: update agents by index, not in a random order."""
    time_limit: str = field(metadata=limits(choices=("bootstrap", "mask", "ignore")))
    """What the end of an episode by a time limit means."""
    use_valuenorm: bool
    """Normalise the critic's targets."""
    valuenorm_update: str = field(metadata=limits(choices=("iteration", "minibatch")))
    """When the statistics of the targets are updated."""


@dataclass(frozen=True, kw_only=True)
class MinibatchConfig(OnPolicyAlgoConfig):
    """Algorithms whose actors take steps of Adam in minibatches."""

    lr: float = field(metadata=FRACTION)
    """Learning rate of the actors."""
    actor_num_mini_batch: int = field(metadata=COUNT)
    """Slices of the rollout in each pass of an actor."""
    entropy_coef: float = field(metadata=limits(at_least=0, at_most=1000))
    """Factor of the entropy bonus."""


@dataclass(frozen=True, kw_only=True)
class PPOConfig(MinibatchConfig):
    """HAPPO and MAPPO."""

    ppo_epoch: int = field(metadata=COUNT)
    """Passes of each actor over the rollout."""


@dataclass(frozen=True, kw_only=True)
class A2CConfig(MinibatchConfig):
    """HAA2C."""

    a2c_epoch: int = field(metadata=COUNT)
    """Passes of each actor over the rollout."""


@dataclass(frozen=True, kw_only=True)
class TRPOConfig(OnPolicyAlgoConfig):
    """HATRPO."""

    refused: ClassVar[Mapping[str, str]] = {
        "lr": "the actors of hatrpo have no learning rate, algo.kl_threshold limits their steps",
        "actor_num_mini_batch": "the actors of hatrpo take one step on the whole rollout",
        "entropy_coef": "the objective of hatrpo has no entropy bonus",
    }
    """Keys of the other on-policy algorithms that would have no effect, and why."""

    kl_threshold: float = field(metadata=POSITIVE)
    """Largest mean KL divergence of the new policy from the old one."""
    ls_step: int = field(metadata=COUNT)
    """The most lengths that the line search tries."""
    accept_ratio: float = field(metadata=FRACTION)
    """Least part of the expected gain that a step must bring."""
    backtrack_coeff: float = field(metadata=limits(above=0, at_most=1))
    """Factor by which a step that fails is shortened."""


AnyTrainConfig = TrainConfig | OffPolicyTrainConfig
AnyModelConfig = ModelConfig | OffPolicyModelConfig | D3QNModelConfig
AnyAlgoConfig = OnPolicyAlgoConfig | OffPolicyAlgoConfig


class AlgoSchema(NamedTuple):
    """Section classes of one algorithm."""

    train: type[AnyTrainConfig]
    model: type[AnyModelConfig]
    algo: type[AnyAlgoConfig]


ALGO_SCHEMAS: dict[str, AlgoSchema] = {
    "happo": AlgoSchema(TrainConfig, ModelConfig, PPOConfig),
    "mappo": AlgoSchema(TrainConfig, ModelConfig, PPOConfig),
    "haa2c": AlgoSchema(TrainConfig, ModelConfig, A2CConfig),
    "hatrpo": AlgoSchema(TrainConfig, ModelConfig, TRPOConfig),
    "haddpg": AlgoSchema(OffPolicyTrainConfig, OffPolicyModelConfig, DDPGConfig),
    "hatd3": AlgoSchema(OffPolicyTrainConfig, OffPolicyModelConfig, TD3Config),
    "hasac": AlgoSchema(OffPolicyTrainConfig, SACModelConfig, SACConfig),
    "had3qn": AlgoSchema(OffPolicyTrainConfig, D3QNModelConfig, D3QNConfig),
    "maddpg": AlgoSchema(OffPolicyTrainConfig, OffPolicyModelConfig, DDPGConfig),
    "matd3": AlgoSchema(OffPolicyTrainConfig, OffPolicyModelConfig, TD3Config),
}
"""By `algo.name`."""


@dataclass(frozen=True, kw_only=True)
class AlgoArgs:
    """What concerns the algorithm."""

    train: AnyTrainConfig
    """Length and shape of the training; the class depends on `algo.name`, as do the next two."""
    model: AnyModelConfig
    """Networks."""
    algo: AnyAlgoConfig
    """Actor, critic and returns; the class depends on `algo.name`."""
    eval: EvalConfig
    """Evaluation during training."""
