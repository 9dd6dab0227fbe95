"""The name under which verifiers finds the environment of `cantrip_acp.training.verifiers`."""

from cantrip_acp.training.verifiers import CastEnv, CastHarness, CastTaskset

__all__ = ["CastEnv", "CastHarness", "CastTaskset"]
