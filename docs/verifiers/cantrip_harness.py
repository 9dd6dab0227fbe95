"""cantrip-acp as a harness of verifiers (Prime Intellect), tried with verifiers 0.4.0.

Put this file where Python finds it and name it: ``AgentConfig(harness={"id": "cantrip_harness"}, …)``, or on the command line
``vf-eval … --env.agent.harness.id cantrip_harness``. `tests/e2e/clients/test_verifiers.py` runs a whole task with it.

The entity's model is verifiers' own endpoint, given by the environment alone: CANTRIP_CRYSTAL names the model,
CANTRIP_BASE_URL and CANTRIP_API_KEY lead to it, whatever the recipe says of a provider. Every model request carries
X-ACP-Model-Request-ID, and the reply to a prompt how requests led to each other, so that the trace knows which branch is a
child's and which a fold's.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from verifiers.v1.acp import ACPConfig, ACPHarness
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.semantic import ACP_SEMANTIC_EDGES_METADATA_KEY

__all__ = ["CantripHarness"]


class CantripHarnessConfig(HarnessConfig):
    id: str = "cantrip_harness"
    command: str = shlex.quote(str(Path(sys.executable).with_name("cantrip-acp")))
    """How the agent is started in the runtime, as in a shell: the command of this Python's environment, unless told otherwise."""
    recipe: str = "coding"
    """Who the entity is: a built-in recipe, or a file in the runtime. One without a `crystal`, so that the endpoint decides."""
    state_root: str = os.environ.get("TMPDIR", "/tmp")
    """Where in the runtime each rollout has its folder of looms."""


class CantripHarness(ACPHarness[CantripHarnessConfig]):
    SUPPORTS_MCP = True
    # Commands of the entity run in bubblewrap, so that a plain subprocess will do.
    NEEDS_CONTAINER = False

    async def prepare_acp(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> ACPConfig:
        system_prompt, prompt = self.resolve_prompt(data)
        env = {
            **self.config.resolved_env,
            "CANTRIP_CRYSTAL": f"openai:{ctx.model}",
            "CANTRIP_BASE_URL": endpoint,
            "CANTRIP_API_KEY": secret,
            # A rollout's looms are its own, and they stay: `cantrip loom export` makes training data of them too.
            "CANTRIP_STATE_DIR": f"{self.config.state_root}/vf-cantrip-{trace.id}",
        }
        return ACPConfig(
            env=env,
            command=[*shlex.split(self.config.command), "--recipe", self.config.recipe],
            prompt=prompt,
            system_prompt=system_prompt,
            client_capabilities={"_meta": {ACP_SEMANTIC_EDGES_METADATA_KEY: True}},
        )
