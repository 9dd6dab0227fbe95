"""verifiers: an environment that casts the questions of an example (``pip install verifiers``). Its id has no dots:

    vf-eval cantrip_verifiers --env.taskset.example larger --model MODEL

The entity queries verifiers' endpoint, which records the tokens, and works in the sandbox of its recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

from cantrip_acp.training.adapters.casts import Casts, not_installed
from cantrip_acp.types.errors import CantripError

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise not_installed("verifiers", error) from error

__all__ = ["CastEnv", "CastHarness", "CastTaskset"]
_casts = cache(Casts)


class CastData(vf.TaskData):  # type: ignore[misc]
    example: str
    reference: Any = None


class CastTask(vf.Task[CastData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    @vf.reward  # type: ignore[untyped-decorator]
    async def cast_reward(self, trace: Any) -> float:
        return float(trace.info.get("cantrip", {}).get("reward") or 0.0)


class CastTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    id: vf.ID = "cantrip_verifiers"
    example: str = "larger"
    split: Literal["train", "held_out"] = "train"


class CastTaskset(vf.Taskset[CastTask, CastTasksetConfig]):  # type: ignore[misc]
    def load(self) -> Iterator[CastTask]:
        for each in getattr(_casts(self.config.example).example, self.config.split):
            data = CastData(prompt=each.intent, example=self.config.example, reference=each.reference)
            yield CastTask(data, self.config.task)


class CastHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    # The entity's programs run in the sandbox of its recipe, and not in the runtime.
    EXECUTES_CODE = NEEDS_CONTAINER = False
    APPENDS_SYSTEM_PROMPT = True

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> vf.ProgramResult:
        casts = _casts(data.example)
        crystal = casts.crystal_at(endpoint, ctx.model, secret, logprobs=False)
        try:
            (sample,) = await casts.sample([casts.question(data.prompt)], crystal, system_prompt=data.system_prompt)
        except CantripError as problem:
            return vf.ProgramResult(1, "", str(problem))
        trace.info["cantrip"] = {"reward": sample.reward, "ended": sample.ended}
        return vf.ProgramResult(0, "", "")


class CastEnvConfig(vf.SingleAgentEnvConfig):  # type: ignore[misc]
    taskset: CastTasksetConfig = CastTasksetConfig()
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class CastEnv(vf.Env[CastEnvConfig]):  # type: ignore[misc]
    async def run(self, task: CastTask, agents: Any) -> None:
        await agents.agent.run(task)
