"""The process of one model: runs llama.cpp in the sandbox, and ends it when no session has used it for some time.

The sandbox shows the weights (read-only), this Python, and the folder of the socket. It has no network: the socket in that
folder is the only way in, and only this user can open it.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import sys
import time
from importlib.resources import files
from typing import Any

import anyio
import anyio.to_thread

from cantrip_acp.sandbox import Sandbox, SandboxOptions, Service, ensure_checked, interpreter, machine
from cantrip_acp.types.errors import CantripError

_LOOK_S = 1.0
_LLAMA_ERROR = re.compile(r"^[\d.]+ E \w+: (.*)", re.MULTILINE)
_ACCELERATORS = ("/dev/dri", "/dev/kfd", "/dev/nvidia*")
_MIB = 1024 * 1024


def _sandbox(weights: str, gpu_layers: int, folder: str) -> Sandbox:
    """A sandbox with more memory than a command has, and with the machine's accelerators if the model uses them."""
    return Sandbox(
        SandboxOptions(bash_writable_paths=(folder,)),
        None,
        host=interpreter.find(None, machine()).on(machine()),
        more_readable=(weights,),
        unix_sockets=True,
        memory=4096 * _MIB + 2 * os.path.getsize(weights),
        devices=[device for pattern in _ACCELERATORS for device in glob.glob(pattern)] if gpu_layers else (),
    )


async def serve(settings: dict[str, Any]) -> str:
    """Run the model until it is idle for ``idle_s`` seconds. Prints ``ready`` when it can answer. Returns why it ended."""
    await ensure_checked()
    folder = os.path.dirname(settings["socket"])
    sandbox = await anyio.to_thread.run_sync(_sandbox, settings["weights"], settings["gpu_layers"], folder)
    program = files("cantrip_acp.crystals.embedded").joinpath("model_server.py").read_text("utf-8")
    service = Service(sandbox, [sys.executable, "-I", "-c", program, json.dumps(settings)], {})
    async with service.running():
        while not (told := await service.receive()).startswith(b"ready"):
            if not told:
                return _why_not_started(service, settings["weights"])
        _tell("ready")
        sys.stdout.close()
        return await _until_idle(service, folder, settings["idle_s"])


def _why_not_started(service: Service, weights: str) -> str:
    said = service.stderr_tail
    if found := _LLAMA_ERROR.search(said):
        return f"llama.cpp cannot load {weights}: {found[1]}"
    return (said or service.end_reason or "it ended").splitlines()[-1]


async def _until_idle(service: Service, folder: str, idle_s: float) -> str:
    used = os.open(os.path.join(folder, "used"), os.O_RDWR | os.O_CLOEXEC)
    try:
        while True:
            with anyio.move_on_after(_LOOK_S):
                await service.gone()
                return service.end_reason or "it ended"
            if time.time() - os.fstat(used).st_mtime < idle_s:
                continue
            try:
                fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if time.time() - os.fstat(used).st_mtime < idle_s:
                fcntl.flock(used, fcntl.LOCK_UN)
                continue
            # Whoever comes now waits for the lock, and then finds no socket.
            os.unlink(os.path.join(folder, "model.sock"))
            return "it was idle"
    finally:
        os.close(used)


def main() -> None:
    """Serve the model that the first argument describes, as JSON. Prints ``ready``, or why it cannot start."""
    try:
        why = anyio.run(serve, json.loads(sys.argv[1]))
    except CantripError as error:
        why = str(error)
    if not sys.stdout.closed:
        _tell(" ".join(why.split()))
    sys.stderr.write(f"{why}\n")


def _tell(line: str) -> None:
    """Print a line for the session that waits for the start."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
