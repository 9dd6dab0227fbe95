"""Code worker: a Python process that runs one cell after another in its sandbox, and is frozen between cells.

The worker is a `Tree`, like a command, with two more pipes for frames. Between cells it is stopped (SIGSTOP) and its
child processes are killed. So no entity code runs outside of a cell. On macOS the tree is a `GroupTree`, and the worker
has a `PrivateFolder` as long as it lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import py_compile
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path

import anyio
import msgspec

from cantrip_acp.files import guarded
from cantrip_acp.sandbox.gate_ipc.server import LARGEST_REQUEST
from cantrip_acp.sandbox.launch import bubblewrap, causes, environment_programs, limits, seatbelt
from cantrip_acp.sandbox.launch import control_groups as controlgroup
from cantrip_acp.sandbox.launch.control_groups import ControlGroup
from cantrip_acp.sandbox.launch.macos_processes import GroupTree, GroupWatchdog, set_priority
from cantrip_acp.sandbox.launch.new_names import NewNames
from cantrip_acp.sandbox.launch.process_tree import Hooks, Launch, Tree, memory_file, sandbox_error, start_soon
from cantrip_acp.sandbox.launch.runtime_dir import runtime
from cantrip_acp.sandbox.launch.sandbox import Sandbox, control_groups
from cantrip_acp.sandbox.policy.interpreter import Interpreter
from cantrip_acp.sandbox.policy.policy import MIB, Policy
from cantrip_acp.sandbox.worker import child_processes, messages
from cantrip_acp.sandbox.worker.child_processes import GroupProcesses, WorkerProcesses
from cantrip_acp.sandbox.worker.messages import BYTES, JSON, FrameError, Frames
from cantrip_acp.types.errors import SandboxError

INSIDE = "/run/cantrip-python"
_OLDEST = (3, 10)
# Every Python version can run the code before the import. So an old Python can report its version.
_BOOT = (
    f"import sys; sys.version_info >= {_OLDEST} or sys.exit('this is Python %%s; cells need {_OLDEST[0]}.{_OLDEST[1]} or newer'"
    f" %% sys.version.split()[0]); sys.path.insert(0, sys.argv[3]); "
    "from _cantrip.%s import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_MOST_QUEUED = 128 * MIB
_MAX_INVALID = 1_000
"""The maximum number of invalid messages of one cell. With more, the worker is killed."""
START_TIMEOUT = 20.0
_EXIT_WITHIN = 0.5
"""Seconds in which a process that ends has ended after its pipe is closed. Then its exit status says why."""
_UNLIMITED_MS = 10**12
"""The processor time is not limited, because it adds up over all cells. Each cell has a limit of wall-clock time."""
_MEMORY_MARGIN = 32 * MIB
"""Bytes that a tree may use above the limit of its ward before it is killed. So a cell first gets a MemoryError, after
which its state still exists.
"""


@dataclass(slots=True)
class WorkerCallbacks:
    """Callbacks of a worker.

    ``output``: called with 1 (stdout) or 2 (stderr), and bytes. ``said``: called with each valid message.
    """

    output: Callable[[int, bytes], None]
    said: Callable[[messages.Message], None]


class Worker:
    """Create it, `start` it, let it run with `thaw`, stop it with `freeze`, and always `close` it.

    ``broken``: why the worker cannot be used any more; None while it can. ``program``: the module in `sandbox/inside`
    that runs in it. ``memory_mb``: the memory limit in MiB.
    """

    program = "code_worker"
    largest_answer = 64 * MIB
    """The most bytes of an answer to a gate call, as JSON."""
    first_check, check_interval = limits.FIRST_CHECK, limits.CHECK_INTERVAL
    """Seconds until the first `judge`, and between two."""
    start_soon = staticmethod(start_soon)

    def __init__(self, sandbox: Sandbox, interpreter: Interpreter, memory_mb: int, listening: WorkerCallbacks) -> None:
        self.taken_away = sandbox.identities()
        """The paths that are hidden from the worker: by the ward ``hidden_paths``, or because this process has them open."""
        found = sandbox.prepared()
        prepared = found.policy
        self._sandbox = sandbox
        self._programs = found.programs
        self._interpreter = interpreter
        self._policy: Policy = replace(
            prepared, limits=replace(prepared.limits, memory=memory_mb * MIB + _MEMORY_MARGIN)
        )
        self._memory = memory_mb * MIB
        self._listening = listening
        self._frames: Frames | None = None
        self._tree: Tree | None = None
        self._pidfd = -1
        self._processes: child_processes.WorkerProcesses | child_processes.GroupProcesses | None = None
        self._group: ControlGroup | None = None
        self._names = NewNames(found.watched, "a code cell") if found.watched is not None else None
        self._invalid_count = 0
        self._ready: messages.Ready | None = None
        self._blobs: list[bytes] | None = None
        self._most_bytes = 0
        self._private: seatbelt.PrivateFolder | None = seatbelt.PrivateFolder.make() if found.seatbelt else None
        self._watchdog: limits.Watchdog
        self._watching = limits.WatchdogRunner()
        if self._private is not None:
            measured = self._private.measured(prepared)
            self._watchdog = GroupWatchdog(self._policy.limits, measured, prepared.writable)
        else:
            self._watchdog = limits.Watchdog(
                self._policy.limits,
                ("/tmp", "/dev/shm", prepared.home),
                count=sandbox.host.uid == 0,
                disks=prepared.writable,
            )
        self.pid = 0
        self.broken: str | None = None
        self.frozen = False
        guarded.runs(self, prepared.writable)

    @property
    def is_running(self) -> bool:
        """Whether a process of it may still run."""
        return self._tree is not None and not self._tree.exited

    @property
    def tree(self) -> Tree:
        assert self._tree is not None
        return self._tree

    @property
    def python(self) -> str:
        """The Python version that the worker reported; empty before that."""
        return self._ready.python if self._ready is not None else ""

    @property
    def first(self) -> int:
        """The process ID of the sandbox's first process, as the host counts; 0 before it exists."""
        return self._tree.pid if self._tree is not None else 0

    async def start(self, settings: Mapping[str, object], environment: Mapping[str, str]) -> None:
        """Start the worker and wait until it can run a cell. Raises `SandboxError`, `SandboxMissing`.

        ``settings``: the content of its start message. ``environment``: further variables.
        """
        self._start(environment)
        own = {"private": self._private.own(self._policy)} if self._private is not None else {}
        self.send({"t": "start", **own, **settings})
        with anyio.move_on_after(START_TIMEOUT):
            while self._ready is None and self.broken is None and self.tree.running:
                await self.tree.changed()
        if self._ready is None:
            await self._raise_start_error()
        self._open_pidfds()

    async def _raise_start_error(self) -> None:
        tree = self.tree
        with anyio.move_on_after(1):
            while tree.running and not tree.exited:
                await tree.changed()
        status = tree.finish()
        if status.exit_code is None and status.ended_because is None:
            explain = causes.explain_seatbelt if self._private is not None else causes.explain
            raise explain(self._early_output()).error()
        output = self._early_output().strip() or "it wrote no message"
        raise SandboxError(
            f"{self._interpreter.program} could not be started in the sandbox as the Python of code cells "
            f"({status.ended_because or f'exit status {status.exit_code}'}): {output}. "
            "A cell cannot fix that: set code_python of the circle to a Python that works"
        )

    def _early_output(self) -> str:
        return bytes(self._early_bytes).decode("utf-8", "replace")[-2000:]

    def _start(self, environment: Mapping[str, str]) -> None:
        self._early_bytes = bytearray()
        inherited: list[int] = []
        ours: list[int] = []
        try:
            their_in, our_out = os.pipe()
            inherited.append(their_in)
            ours.append(our_out)
            our_in, their_out = os.pipe()
            inherited.append(their_out)
            ours.append(our_in)
            python = [self._interpreter.program, "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT % self.program]
            python += [str(their_in), str(their_out)]
            if self._private is not None:
                self._tree = self._seatbelt_tree(self._private, python, inherited, environment)
            else:
                self._tree = self._bubblewrap_tree(python, inherited, environment)
            inherited = []
            self._tree.start()
        except BaseException as error:
            for fd in (*inherited, *ours):
                os.close(fd)
            if isinstance(error, OSError):
                raise sandbox_error("the Python of code cells cannot be started in the sandbox", error) from error
            raise
        self._frames = Frames(
            our_in,
            our_out,
            self._on_frame,
            self._on_end,
            largest=LARGEST_REQUEST + 65_536,
            most_queued=_MOST_QUEUED,
        )

    def _bubblewrap_tree(self, python: list[str], inherited: list[int], environment: Mapping[str, str]) -> Tree:
        """The tree of bubblewrap that runs ``python``. The descriptors that it needs are added to ``inherited``."""
        if self._names is not None:
            self._names.begin()
        extra: list[str] = []
        for name, value in environment.items():
            extra += ["--setenv", name, value]
        options = bubblewrap.encode(["--ro-bind", inside(), INSIDE, *self._sandbox.arguments(), *extra])
        args = memory_file(options)
        inherited.append(args)
        calls = memory_file(self._sandbox.filter)
        inherited.append(calls)
        argv = [runtime().token, "--seccomp", str(calls), "--args", str(args), "--", *python, INSIDE]
        launch = Launch(
            program=self._sandbox.program,
            argv=argv,
            inherited=inherited,
            supervisor=self._sandbox.supervisor,
            network=self._sandbox.network,
        )
        if (parent := control_groups()) is not None:
            self._group = controlgroup.make(parent, runtime().group_name(parent), self._policy.limits)
        if self._group is not None:
            launch.within = self._group.enter
        return Tree(launch, Hooks(output=self._on_output, prepared=self._on_prepared))

    def _seatbelt_tree(
        self, private: seatbelt.PrivateFolder, python: list[str], inherited: list[int], environment: Mapping[str, str]
    ) -> GroupTree:
        """The tree of sandbox-exec that runs ``python``. There our files have the same path inside as outside."""
        folder, policy = seatbelt.real_path(inside()), self._policy
        launch = private.launch(
            replace(policy, readable=(*policy.readable, folder)),
            [*python, folder],
            program=self._sandbox.program,
            environment=environment,
            limits=replace(policy.limits, timeout_ms=_UNLIMITED_MS),
            cores=self._sandbox.host.cores,
            inherited=inherited,
        )
        hooks = Hooks(output=self._on_output, prepared=lambda pid: set_priority(pid, policy.limits.cpu_percent))
        tree = GroupTree(launch, hooks, private.token)
        assert isinstance(self._watchdog, GroupWatchdog)
        self._watchdog.tree = tree
        return tree

    def _on_prepared(self, pid: int) -> None:
        bounds = replace(self._policy.limits, timeout_ms=_UNLIMITED_MS)
        if self._group is not None:
            self._group = self._group.add_process(pid)
        limits.apply(pid, bounds, cores=self._sandbox.host.cores, root=self._sandbox.host.uid == 0)
        limits.limit_data_size(pid, self._memory)

    def _open_pidfds(self) -> None:
        """Open a pidfd of the interpreter's process, before it runs any code of the entity."""
        if isinstance(self._tree, GroupTree):
            self.pid = self._tree.command_process()
            self._processes = child_processes.GroupProcesses(self._tree, self.pid)
            return
        try:
            with open(f"/proc/{self.first}/task/{self.first}/children", "rb") as file:
                self.pid = int(file.read().split()[0])
            self._pidfd = os.pidfd_open(self.pid)
            self._processes = child_processes.WorkerProcesses(self.first, self.pid)
        except OSError as error:
            raise sandbox_error("the code worker's process cannot be watched", error) from error
        except IndexError as error:
            raise SandboxError("the code worker's process cannot be found") from error

    # Input from the worker

    def _on_output(self, stream: int, data: bytes) -> None:
        if self._ready is None:
            self._early_bytes += data[: max(0, 65_536 - len(self._early_bytes))]
            return
        self._listening.output(stream, data)

    def _on_frame(self, kind: bytes, body: bytes) -> None:
        if kind == BYTES:
            self._on_snapshot_piece(body)
            return
        said = messages.decode(body)
        if said is None:
            self._invalid_count += 1
            if self._invalid_count > _MAX_INVALID:
                self.end("it sent too many invalid messages to the host")
        elif isinstance(said, messages.Ready):
            if self._ready is None:
                self._ready = said
        elif self._ready is not None:
            self._listening.said(said)
        self.tree.wake()

    def _on_snapshot_piece(self, body: bytes) -> None:
        """Store a piece of a snapshot if a snapshot was requested; else ignore it."""
        if self._blobs is not None:
            self._most_bytes -= len(body)
            if self._most_bytes < 0:
                self.end("its state is larger than a snapshot may be")
                return
            self._blobs.append(body)

    def _on_end(self, why: str) -> None:
        if self.broken is None:
            self.broken = why
        if not self.tree.exited:
            # A process that closed its pipe may still run, but no message can reach it.
            asyncio.get_running_loop().call_later(_EXIT_WITHIN, self._end_if_alive)
        self.tree.wake()

    def _end_if_alive(self) -> None:
        if self._tree is not None and not self._tree.exited:
            self._tree.end(self.broken or "it was stopped")

    # Called by the host

    def send(self, data: Mapping[str, object]) -> None:
        """Send a command or an answer. If it cannot be sent, the worker is killed."""
        self._send(JSON, msgspec.json.encode(data))

    def send_answer(self, data: Mapping[str, object]) -> None:
        """Send an answer. If it has more than `largest_answer` bytes, send an error about its size instead."""
        body = msgspec.json.encode(data)
        if len(body) > self.largest_answer:
            body = msgspec.json.encode(
                {
                    "id": data["id"],
                    "error": True,
                    "result": f"the gate's result is too large: {len(body)} bytes of JSON",
                }
            )
        self._send(JSON, body)

    def _send(self, kind: bytes, body: bytes) -> None:
        if self._frames is None or self.broken is not None:
            return
        try:
            self._frames.send(kind, body)
        except FrameError as error:
            self.end(str(error))

    def collect(self, most: int) -> list[bytes]:
        """Collect the pieces of a snapshot in the returned list from now on, up to ``most`` bytes."""
        self._blobs, self._most_bytes = [], most
        return self._blobs

    def stop_collecting(self) -> None:
        """Ignore further pieces of a snapshot."""
        self._blobs = None

    def feed(self, data: bytes) -> None:
        """Send a piece of a snapshot that the worker will load."""
        self._send(BYTES, data)

    def thaw(self) -> None:
        """Let the worker run (SIGCONT)."""
        self._invalid_count = 0
        self._watchdog.disks.begin()
        environment_programs.refresh(self._programs)
        if self._names is not None and self.frozen:
            self._names.restart()
        self.frozen = False
        self._signal(signal.SIGCONT)

    def resume(self) -> None:
        """Resume the worker after a cell has stopped it (SIGSTOP to itself). No process inside could resume it."""
        self._signal(signal.SIGCONT)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt inside (SIGINT), at a point that the worker allows."""
        self._signal(signal.SIGINT)

    def _signal(self, number: int) -> None:
        if isinstance(self._tree, GroupTree):
            # Its number cannot be that of another process before its end is known.
            if self.pid and self._tree.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)
            return
        if self._pidfd < 0:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def judge(self, on_verdict: Callable[[str | None], None], times: int = 1) -> None:
        """`watch` the tree, in a thread if that is slow, and then call ``on_verdict`` with what it says, now or later."""
        self._watching.ask(partial(self.watch, times), on_verdict)

    def watch(self, times: int = 1) -> str | None:
        """The reason why the worker's tree must be killed, or None; see `Watchdog.verdict`.

        Any thread may call this. The result is valid only if the tree is still alive afterwards.
        """
        first = self.first
        if self._names is not None and (why := self._names.look()) is not None:
            return why
        verdict = self._watchdog.verdict(first, times) if first else None
        return f"it used {verdict}" if verdict is not None else None

    def disk_full(self) -> str | None:
        """A message about a disk that is full since the last `thaw`, or about too much that was written, or None."""
        return self._watchdog.disks.full_message() or self._watchdog.disk_message(self.first)

    def end(self, because: str) -> None:
        """Kill the worker and all its child processes at once."""
        if self.broken is None:
            self.broken = because
        if self._tree is not None:
            self._tree.end(because)

    async def freeze(self) -> bool:
        """Stop the worker and kill its child processes. Returns False if that failed; then the worker is killed."""
        self._signal(signal.SIGSTOP)
        self.frozen = True
        if self.tree.exited or self.broken is not None:
            return False
        self.tree.read_now()
        assert self._processes is not None
        for _ in range(20):
            if self._processes.is_quiet:
                break
        else:
            if not await self._kill_children(self._processes):
                return False
        changed = environment_programs.take_over(self._programs)
        if self._names is not None:
            self._names.said = [*map(os.fsdecode, changed), *await self._names.finish()]
        return self.broken is None

    @property
    def last_words(self) -> list[str]:
        """What is to be said about the protected names that the last cell made or changed, as lines."""
        return self._names.said if self._names is not None else []

    @property
    def is_outdated(self) -> bool:
        """Whether there is a protected file now that the worker could change, because it began before."""
        return self._names is not None and self._names.exposed((*self._policy.protected, *self._policy.hidden))

    async def _kill_children(self, processes: WorkerProcesses | GroupProcesses) -> bool:
        end = time.monotonic() + processes.KILL_WITHIN
        pause = 0.0002
        while not processes.all_stopped():
            if time.monotonic() > end:
                self.end("its child processes could not be killed")
                return False
            if processes.stopped():
                processes.kill_others()
            await anyio.sleep(pause)
            pause = min(pause * 2, 0.01)
        return True

    def stop(self) -> None:
        """Stop only the worker process. Its child processes continue."""
        self._signal(signal.SIGSTOP)

    @property
    def is_busy(self) -> bool:
        """Whether a child process runs, after the worker process was stopped."""
        return self._processes is not None and not self._processes.all_stopped()

    def drop_incomplete(self) -> None:
        """Discard an incomplete message whose sender was killed."""
        if self._frames is not None:
            self._frames.drop_incomplete()

    async def gone(self) -> None:
        """Wait until the worker has ended and all output was read."""
        while self.tree.running:
            await self.tree.changed()

    def close(self) -> None:
        """Kill the worker and close all descriptors. Safe to call twice."""
        if self._frames is not None:
            self._frames.close()
            self._frames = None
        if self._tree is not None:
            self._tree.finish()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self._processes is not None:
            self._processes.close()
            self._processes = None
        if self._group is not None:
            self._group.remove()
            self._group = None
        environment_programs.take_over(self._programs)
        if self._names is not None:
            self._names.end()
        if self._private is not None:
            self._private.remove()
            self._private = None
        if self.broken is None:
            self.broken = "it was closed"


_prepared: dict[str, str] = {}
_preparing = threading.Lock()


def inside() -> str:
    """The host folder with the files that run in a worker: our package and cloudpickle.

    It also contains bytecode for the Python that runs cantrip. Neither package is imported here. The folder is made
    once. Any thread may call this.
    """
    with _preparing:
        base = runtime().folder
        folder = _prepared.get(base)
        if folder is None or not os.path.isdir(folder):
            folder = _prepare_inside()
            _prepared.clear()
            _prepared[base] = folder
        return folder


def _prepare_inside() -> str:
    folder = runtime().make_folder("python")
    package = os.path.join(folder, "_cantrip")
    os.mkdir(package, 0o755)
    for source in files("cantrip_acp.sandbox.inside").joinpath("python").iterdir():
        if source.name.endswith(".py"):
            Path(package, source.name).write_bytes(source.read_bytes())
    found = importlib.util.find_spec("cloudpickle")
    if found is None or not found.submodule_search_locations:
        raise SandboxError("the package cloudpickle is not installed: pip install cloudpickle")
    with as_file(Path(next(iter(found.submodule_search_locations)))) as pickler:
        shutil.copytree(pickler, os.path.join(package, "cloudpickle"), ignore=shutil.ignore_patterns("__pycache__"))
    for path in Path(package).rglob("*.py"):
        shown = str(path).replace(folder, INSIDE, 1)
        py_compile.compile(
            str(path), dfile=shown, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
    os.chmod(folder, 0o755)
    return folder
