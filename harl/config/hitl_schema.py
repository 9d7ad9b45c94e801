"""Keys of the section `hitl`: whether and how people take part."""

from __future__ import annotations

from dataclasses import dataclass, field

from harl.config.fields import FRACTION, TEXT, limits, younger

TAKEOVER_MODES = ("auto", "mask_bc", "mask", "executed", "rlpd", "rlpd_bc", "replay", "rlif", "silent")
"""How a learner treats steps that a person drove; `harl.hitl.learning` says what each means."""
REWARD_MODES = ("shape", "replace", "log")
"""What a person's praise and blame do to the reward."""

LEARNING_KEYS = (
    *("takeover.learn", "takeover.bc_coef", "takeover.bc_anneal", "takeover.bc_filter", "takeover.bc_agents"),
    "takeover.bc_max_age",
    *("takeover.cut_trace", "takeover.value_mask", "takeover.takeover_penalty", "takeover.demo_fraction"),
    *("takeover.buffer_size", "reward.learn", "reward.weight", "reward.anneal", "demonstrations"),
)
"""Keys of the section that say how is learned from people, and nothing else."""

_PORT = limits(at_least=0, at_most=65_535)


@dataclass(frozen=True, kw_only=True)
class HitlConfig:
    """Whether people take part."""

    name: str = field(metadata=limits(choices=("off", "web", "sharpie")))
    """The mode."""


@dataclass(frozen=True, kw_only=True)
class TakeoverConfig:
    """People who drive an agent."""

    learn: str = field(metadata=limits(choices=TAKEOVER_MODES))
    """What is learned from steps that a person drove."""
    bc_coef: float = field(metadata=limits(at_least=0))
    """Weight of the imitation loss at the start of the run."""
    bc_anneal: bool
    """Lower the weight linearly to 0 over the run."""
    bc_filter: str = field(metadata=limits(choices=("none", "advantage")))
    """Imitate every human step, or those with a positive advantage."""
    bc_agents: str = field(metadata=limits(choices=("same", "all")))
    """Who imitates a human step: the agent that was driven, or all."""
    bc_max_age: int | None = field(metadata=younger(limits(at_least=0), None))
    """Most steps between what the driver had seen and a step that is imitated; None = any."""
    cut_trace: bool
    """End the traces of advantages at handovers."""
    value_mask: bool
    """Leave human steps out of the value loss."""
    takeover_penalty: float = field(metadata=limits(at_least=0))
    """Taken from the agent's reward of the step before a takeover."""
    demo_fraction: float = field(metadata=FRACTION)
    """Share of each off-policy batch that comes from the buffer of human steps."""
    buffer_size: int = field(metadata=limits(at_least=1, at_most=10**9))
    """Human steps that are kept for learning."""
    lease_ttl_ms: int = field(metadata=limits(at_least=50, at_most=60_000))
    """Milliseconds after which an agent goes back to its policy when nothing is heard from its driver."""
    idle_s: float = field(metadata=limits(above=0, at_most=86_400))
    """Seconds without input after which a lease is given back."""


@dataclass(frozen=True, kw_only=True)
class FeedbackConfig:
    """People who praise and blame."""

    learn: str = field(metadata=limits(choices=REWARD_MODES))
    """What feedback does to the reward that is learned from."""
    weight: float = field(metadata=limits(at_least=0))
    """Reward that one press is worth."""
    anneal: bool
    """Lower the weight linearly to 0 over the run."""
    credit: str = field(metadata=limits(choices=("slow", "fast", "turn")))
    """Which of the displayed steps an event is about."""
    only_shown: bool
    """Credit displayed steps alone, not those that passed between two frames."""
    feedback_grace_s: float = field(metadata=younger(limits(at_least=0, at_most=600), 0.0))
    """On-policy: the longest wait before an update for feedback on its last steps."""


@dataclass(frozen=True, kw_only=True)
class PeopleConfig(HitlConfig):
    """What every mode with people has."""

    takeover: TakeoverConfig
    """People who drive an agent."""
    reward: FeedbackConfig
    """People who praise and blame."""
    pace: str = field(metadata=limits(choices=("auto", "free", "realtime", "lockstep")))
    """How fast the environment goes."""
    fps: float = field(metadata=limits(above=0, at_most=10_000))
    """Steps a second in realtime, and the most frames a second that are shown."""
    absent: str = field(metadata=limits(choices=("policy", "default", "previous")))
    """Who acts where a driver is awaited and does not."""
    timeout_s: float = field(metadata=limits(above=0, at_most=3600))
    """Longest wait for people in lockstep."""
    max_pause_s: float = field(metadata=limits(above=0, at_most=86_400))
    """Longest pause."""
    env_index: int = field(metadata=limits(at_least=0, at_most=1_000_000))
    """Which of the parallel environments is shown."""
    envs: str = field(metadata=limits(choices=("one", "all")))
    """Whether people may look at, and drive in, the other environments too."""
    demonstrations: str | None = field(metadata=TEXT)
    """Folder of recorded sessions that are learned from."""
    record: str = field(metadata=limits(choices=("touched", "watched", "off")))
    """Which episodes are written under people/."""
    condition: str | None = field(metadata=TEXT)
    """Study condition, carried into the recording."""
    consent_version: str | None = field(metadata=TEXT)
    """Version of the consent text, carried into the recording."""


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """Encryption of the page and the socket."""

    cert: str | None = field(metadata=TEXT)
    """PEM file with the certificate chain."""
    key: str | None = field(metadata=TEXT)
    """PEM file with the private key."""


@dataclass(frozen=True, kw_only=True)
class WebConfig(PeopleConfig):
    """The own page and its socket."""

    host: str = field(metadata=TEXT)
    """Address to listen at."""
    port: int = field(metadata=_PORT)
    """Port of page and socket; 0 = a free one."""
    token_file: str | None = field(metadata=TEXT)
    """YAML file: role → token."""
    origins: tuple[str, ...] | None = field(metadata=TEXT)
    """Further origins from which pages may connect."""
    scripts: bool
    """Whether clients that send no Origin, which browsers always do, may connect."""
    tls: TlsConfig
    """Encryption."""
    inputs_per_s: float = field(metadata=limits(at_least=1, at_most=100_000))
    """Most inputs a second of one connection, more is dropped; of other messages a third, or 20."""
    max_clients: int = field(metadata=limits(at_least=1, at_most=10_000))
    """Most connections at a time."""
    consent: str | None = field(metadata=TEXT)
    """Text file that people agree to before they take part."""
    wait_for_people: bool
    """Wait with the first step until somebody who may act is connected."""
    refused = {  # noqa: RUF012 - a constant of the class
        "token": "what stands in a configuration ends in its files; put tokens in the environment variables "
        "HARL_TOKEN_OBSERVER, HARL_TOKEN_CONTROLLER, HARL_TOKEN_TRAINER, HARL_TOKEN_ADMIN, or in hitl.token_file",
    }


@dataclass(frozen=True, kw_only=True)
class SharpieConfig(PeopleConfig):
    """A SHARPIE site whose runner this run is."""

    hostname: str = field(metadata=TEXT)
    """Host of the site."""
    port: int = field(metadata=_PORT)
    """Port of the site."""
    tls: bool
    """Connect by wss:// rather than ws://."""
    key_file: str | None = field(metadata=TEXT)
    """File with the runner's connection key; null = environment variable SHARPIE_CONNECTION_KEY."""
    mapping: str | None = field(metadata=TEXT)
    """YAML file: link → environment, role → agent."""
    link: str | None = field(metadata=TEXT)
    """Link of the experiment, for a room without the queue; null = take what the queue gives."""
    room: str | None = field(metadata=TEXT)
    """Room, for a room without the queue."""
    trust_server_code: bool
    """Write and run the code that the site sends."""


HITL_SCHEMAS: dict[str, type[HitlConfig]] = {"off": HitlConfig, "web": WebConfig, "sharpie": SharpieConfig}
