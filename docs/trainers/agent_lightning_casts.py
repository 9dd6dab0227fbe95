"""agent-lightning: a cast as the agent of a rollout (``pip install agentlightning``: 1.0 or later, Python 3.12 or later).

The configuration of the trainer names the agent, and says from where it takes its example and its question:

    agentlightning.local.agent_class: agent_lightning_casts:CastAgent
    agentlightning.local.env_map: {CANTRIP_EXAMPLE: larger, CANTRIP_PROMPT: input.prompt}

The rows of `Casts.prompts` are the data set. On Kubernetes, the command of the job is
``python -m agent_lightning_casts``, with the same two variables.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
from agentlightning.client import AgentLightningSyncClient

from cantrip_acp.text.codecs import json_decoder
from cantrip_acp.training.adapters.casts import Casts
from cantrip_acp.types.errors import DefinitionError

__all__ = ["CastAgent"]


class CastAgent:
    """Casts one question, in the process that the controller of agent-lightning starts for a rollout.

    Its proxy records the queries; this reports the reward. It reads variables: ``AGL_OPENAI_BASE_URL``, ``AGL_EVENT_URL``
    and ``AGL_KEY`` are the controller's, ``CANTRIP_EXAMPLE`` is the example as for `Casts`, and ``CANTRIP_PROMPT`` the
    question: a text, or messages as JSON. ``CANTRIP_LOOMS`` is a folder for the looms.
    """

    async def run(self) -> None:
        """Raises `CantripError` if the cast fails: the rollout has then failed, without a reward."""
        looms = os.environ.get("CANTRIP_LOOMS")
        casts = Casts(_variable("CANTRIP_EXAMPLE"), looms=Path(looms) if looms else None)
        question = casts.question(_prompt(_variable("CANTRIP_PROMPT")))
        key = os.environ.get("AGL_KEY") or "none"
        # The proxy puts its own model, temperature and wish for tokens into each query.
        crystal = casts.crystal_at(_variable("AGL_OPENAI_BASE_URL"), "policy", key, logprobs=False)
        (sample,) = await casts.sample([question], crystal)
        await asyncio.to_thread(_report, sample.reward or 0.0, key)


def _prompt(text: str) -> str | list[dict[str, Any]]:
    try:
        return json_decoder(list[dict[str, Any]]).decode(text)
    except msgspec.DecodeError:
        return text


def _report(reward: float, key: str) -> None:
    """Sent again if it is uncertain whether it came: the last reward of a rollout counts."""
    with AgentLightningSyncClient(key=key) as client:
        client.post_with_retry(
            _variable("AGL_EVENT_URL"),
            json={"event_type": "reward", "data": {"value": reward, "source": "agent"}},
        )


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise DefinitionError(
            f"the variable {name} is not set; the controller of agent-lightning sets AGL_…, and its env_map the others"
        )
    return value


if __name__ == "__main__":
    asyncio.run(CastAgent().run())
