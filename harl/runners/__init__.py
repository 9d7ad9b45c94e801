"""Training loops: on-policy and off-policy, with sequential (HA) or simultaneous (MA) updates.

`RUNNER_REGISTRY` maps the name of an algorithm to the class of its runner.
"""

from __future__ import annotations

from harl.registry import ALGORITHMS
from harl.runners.off_policy_base_runner import OffPolicyBaseRunner
from harl.runners.off_policy_ha_runner import OffPolicyHARunner
from harl.runners.off_policy_ma_runner import OffPolicyMARunner
from harl.runners.on_policy_base_runner import OnPolicyBaseRunner
from harl.runners.on_policy_ha_runner import OnPolicyHARunner
from harl.runners.on_policy_ma_runner import OnPolicyMARunner
from harl.runners.policy import Policy
from harl.runners.runner import RunInterrupted, Runner

_RUNNERS: dict[str, type[Runner]] = {
    "on_policy_ha": OnPolicyHARunner,
    "on_policy_ma": OnPolicyMARunner,
    "off_policy_ha": OffPolicyHARunner,
    "off_policy_ma": OffPolicyMARunner,
}

RUNNER_REGISTRY: dict[str, type[Runner]] = {name: _RUNNERS[entry.runner] for name, entry in ALGORITHMS.items()}

__all__ = [
    "RUNNER_REGISTRY",
    "OffPolicyBaseRunner",
    "OffPolicyHARunner",
    "OffPolicyMARunner",
    "OnPolicyBaseRunner",
    "OnPolicyHARunner",
    "OnPolicyMARunner",
    "Policy",
    "RunInterrupted",
    "Runner",
]
