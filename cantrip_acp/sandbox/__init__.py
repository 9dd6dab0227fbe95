"""A sandbox for untrusted commands and Python code, without root and without containers: bubblewrap, seccomp, a filtering
proxy and limits on Linux, sandbox-exec on macOS.

    >>> sandbox = Sandbox(SandboxOptions(bash_timeout_ms=5_000), workspace)
    >>> outcome = await sandbox.run("ls; curl example.org")

It stands on the ground alone, and knows no entity, medium or gate: see README.md beside this file. Inside, `policy/` decides
what is visible and writable, `launch/` runs a command under that policy, `worker/` (host side) and `inside/` (sandbox side)
run code cells, `network/` has the filtering proxy, `gate_ipc/` the calls of a shell's commands to the host. Start reading
with `launch/sandbox.py`.

Each name is imported when it is first used: a front end names the sandbox long before it needs one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cantrip_acp.sandbox.gate_ipc.command_words import gate_usage as gate_usage
    from cantrip_acp.sandbox.gate_ipc.server import GateWire as GateWire
    from cantrip_acp.sandbox.gate_ipc.server import WireSession as WireSession
    from cantrip_acp.sandbox.launch import diagnosis as diagnosis
    from cantrip_acp.sandbox.launch.background import Background as Background
    from cantrip_acp.sandbox.launch.output import Cleaner as Cleaner
    from cantrip_acp.sandbox.launch.output import Collector as Collector
    from cantrip_acp.sandbox.launch.output import clean as clean
    from cantrip_acp.sandbox.launch.runtime_dir import runtime as runtime
    from cantrip_acp.sandbox.launch.sandbox import Outcome as Outcome
    from cantrip_acp.sandbox.launch.sandbox import Running as Running
    from cantrip_acp.sandbox.launch.sandbox import Sandbox as Sandbox
    from cantrip_acp.sandbox.launch.sandbox import machine as machine
    from cantrip_acp.sandbox.launch.self_test import ensure_checked as ensure_checked
    from cantrip_acp.sandbox.launch.service import Service as Service
    from cantrip_acp.sandbox.network import hosts as hosts
    from cantrip_acp.sandbox.network.hosts import AllowedHosts as AllowedHosts
    from cantrip_acp.sandbox.policy import interpreter as interpreter
    from cantrip_acp.sandbox.policy.policy import Policy as Policy
    from cantrip_acp.sandbox.policy.policy import SandboxOptions as SandboxOptions
    from cantrip_acp.sandbox.policy.policy import check_root as check_root
    from cantrip_acp.sandbox.policy.policy import real_paths as real_paths
    from cantrip_acp.sandbox.policy.refusals import explain_refusals as explain_refusals
    from cantrip_acp.sandbox.worker import messages as messages
    from cantrip_acp.sandbox.worker.host_side import Worker as Worker
    from cantrip_acp.sandbox.worker.host_side import WorkerCallbacks as WorkerCallbacks

_HOMES = {
    "AllowedHosts": "network.hosts",
    "Background": "launch.background",
    "Cleaner": "launch.output",
    "Collector": "launch.output",
    "GateWire": "gate_ipc.server",
    "Outcome": "launch.sandbox",
    "Policy": "policy.policy",
    "Running": "launch.sandbox",
    "Sandbox": "launch.sandbox",
    "SandboxOptions": "policy.policy",
    "Service": "launch.service",
    "WireSession": "gate_ipc.server",
    "Worker": "worker.host_side",
    "WorkerCallbacks": "worker.host_side",
    "check_root": "policy.policy",
    "clean": "launch.output",
    "diagnosis": "launch.diagnosis",
    "ensure_checked": "launch.self_test",
    "explain_refusals": "policy.refusals",
    "gate_usage": "gate_ipc.command_words",
    "hosts": "network.hosts",
    "interpreter": "policy.interpreter",
    "machine": "launch.sandbox",
    "messages": "worker.messages",
    "real_paths": "policy.policy",
    "runtime": "launch.runtime_dir",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{home}")
    value = module if home.endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value
