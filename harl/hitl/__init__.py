"""People in the loop: watching, driving and rewarding agents while they learn.

Nothing but the contract of `harl.hitl.bridge` is imported before a bridge is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harl.config import HitlConfig
    from harl.hitl.bridge import Bridge


def make_bridge(config: HitlConfig) -> Bridge | None:
    """The bridge that the section `hitl` asks for, listening already; None for nobody.

    Raises:
        ConfigError: it cannot listen as configured: the port is taken, a certificate or token is missing, …
    """
    from harl.config import SharpieConfig, WebConfig

    if isinstance(config, WebConfig):
        from harl.hitl.web import WebBridge

        return WebBridge(config)
    if isinstance(config, SharpieConfig):
        from harl.hitl.sharpie_bridge import SharpieBridge

        return SharpieBridge(config)
    return None
