"""Metrics of a worker for Prometheus, and its health check, over HTTP.

``/metrics`` has what this worker did, and how deep its lane is. ``/healthz`` answers 200 if the worker takes tuples, and 503
while it drains or if its store cannot be reached.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from cantrip_acp.files.installation import install_command
from cantrip_acp.tuplespace.errors import SpaceError
from cantrip_acp.tuplespace.yools.step import YoolBase
from cantrip_acp.types.errors import DefinitionError
from cantrip_acp.version import __version__

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
    from prometheus_client.exposition import choose_encoder
except ImportError as error:
    raise DefinitionError(f"--metrics needs prometheus-client ({error}): {install_command('metrics')}") from None

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.workers.worker import Ended, StepCall, StepResult, Worker, Yool

_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""Seconds of a step."""
_FRESH_S = 2.0
"""The age up to which an answer of the store is reused, so that many requests cost one query."""
_PATIENCE_S = 3.0
"""How long to wait for the store before it counts as not reachable. Monitors themselves wait 10 s or less."""
_CLIENT_S = 10.0


class WorkerMetrics:
    """Counts what a worker does. Give ``ended`` to the worker, and its yools through ``timed``."""

    def __init__(self, store: TupleStore, lane: str, worker: str) -> None:
        self._store = store
        self._lane = lane
        self._runner: Worker | None = None
        self._lookers = ThreadPoolExecutor(1, thread_name_prefix="store check")
        self._looking: Future[tuple[int, float]] | None = None
        self._looked_at = float("-inf")
        self._lock = threading.Lock()
        self.registry = registry = CollectorRegistry()
        Info("cantrip_worker", "The worker.", registry=registry).info({"version": __version__, "worker": worker})
        self._ended = Counter(
            "cantrip_tuples_ended", "Tuples that this worker ended, or gave back (again).", ["lane", "state"],
            registry=registry,
        )  # fmt: skip
        self._usd = Counter(
            "cantrip_cost_usd", "US dollars that the tuples ended here have cost.", ["lane"], registry=registry
        )
        self._tokens = Counter(
            "cantrip_tokens", "Tokens of the tuples ended here.", ["lane", "direction"], registry=registry
        )
        self._steps = Histogram(
            "cantrip_step_duration_seconds", "How long steps ran here.", ["lane", "yool"], buckets=_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self._reused = Counter(
            "cantrip_steps_reused",
            "Steps of the tuples ended here whose answer was reused.",
            ["lane"],
            registry=registry,
        )
        self._running = Gauge(
            "cantrip_tuples_running", "Tuples that this worker works on now.", ["lane"], registry=registry
        )
        self._draining = Gauge("cantrip_worker_draining", "1 if the worker takes nothing more.", registry=registry)
        self._reachable = Gauge(
            "cantrip_store_reachable", "1 if the store of tuples answers in time.", registry=registry
        )
        self._waiting = Gauge(
            "cantrip_lane_waiting", "Tuples that wait in the lane, for all workers.", ["lane"], registry=registry
        )
        self._oldest = Gauge(
            "cantrip_lane_oldest_waiting_seconds", "Age of the oldest waiting tuple.", ["lane"], registry=registry
        )
        # Counters begin at 0, so that rates are right from the first event on.
        for state in ("done", "failed", "again"):
            self._ended.labels(lane, state)
        self._usd.labels(lane)
        self._reused.labels(lane)
        for direction in ("input", "output"):
            self._tokens.labels(lane, direction)

    def watch(self, worker: Worker) -> None:
        """Report the worker's running tuples and whether it drains."""
        self._runner = worker

    def ended(self, ended: Ended) -> None:
        """Count an attempt."""
        receipt = ended.receipt
        if receipt is None:
            self._ended.labels(self._lane, "again").inc()
            return
        self._ended.labels(self._lane, "done" if ended.failed is None else "failed").inc()
        self._reused.labels(self._lane).inc(ended.reused)
        cost = receipt["cost"]
        self._usd.labels(self._lane).inc(cost.get("usd") or 0)
        self._tokens.labels(self._lane, "input").inc(cost.get("tokens_in") or 0)
        self._tokens.labels(self._lane, "output").inc(cost.get("tokens_out") or 0)

    def timed(self, yools: Mapping[str, Yool]) -> dict[str, Yool]:
        """The same yools, with the time of each call counted."""
        return {name: self._timed(name, yool) for name, yool in yools.items()}

    def _timed(self, name: str, yool: Yool) -> Callable[[StepCall], Awaitable[StepResult]]:
        seconds = self._steps.labels(self._lane, name)

        async def run(call: StepCall) -> StepResult:
            with seconds.time():
                return await yool(call)

        for name in vars(YoolBase):
            if hasattr(yool, name) and not name.startswith("_"):
                setattr(run, name, getattr(yool, name))
        return run

    def state(self) -> tuple[str, str | None]:
        """``ready``, ``draining`` or ``unreachable``, with the reason. Waits for the store for 3 s at most."""
        runner = self._runner
        draining = runner is not None and runner.draining
        self._draining.set(draining)
        if runner is not None:
            self._running.labels(self._lane).set(runner.running)
        try:
            waiting, oldest_s = self._look()
        except (SpaceError, TimeoutError) as error:
            self._reachable.set(0)
            # An old depth would make a scaler start or end workers for nothing.
            self._waiting.clear()
            self._oldest.clear()
            return "unreachable", str(error) or f"{self._store.location} did not answer in {_PATIENCE_S:g} s"
        self._reachable.set(1)
        self._waiting.labels(self._lane).set(waiting)
        self._oldest.labels(self._lane).set(oldest_s)
        return ("draining", "the worker takes nothing more") if draining else ("ready", None)

    def _look(self) -> tuple[int, float]:
        """Read the depth of the lane: one query at a time, and at most every 2 s."""
        with self._lock:
            now = time.monotonic()
            if self._looking is None or (self._looking.done() and now - self._looked_at > _FRESH_S):
                self._looking = self._lookers.submit(self._store.waiting, self._lane)
                self._looked_at = now
            looking = self._looking
        return looking.result(_PATIENCE_S)

    @contextmanager
    def serve(self, host: str, port: int) -> Iterator[str]:
        """Serve while the block runs; yields the address. Raises `DefinitionError` if the port cannot be used."""
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _CLIENT_S
            server_version = f"cantrip/{__version__}"
            sys_version = ""

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    metrics.state()
                    encode, kind = choose_encoder(self.headers.get("Accept") or "")
                    self._answer(200, encode(metrics.registry), kind)
                elif path == "/healthz":
                    state, reason = metrics.state()
                    shown: dict[str, Any] = {"state": state, **({"reason": reason} if reason else {})}
                    self._answer(200 if state == "ready" else 503, json.dumps(shown).encode(), "application/json")
                else:
                    self._answer(404, b"there are /metrics and /healthz\n", "text/plain; charset=utf-8")

            do_HEAD = do_GET  # noqa: N815 - the name of the base class

            def _answer(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Log nothing: stderr belongs to the worker."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Ignore the error: a client that disconnects is no error of the worker."""

        try:
            server = Server((host, port), Handler)
        except OSError as error:
            raise DefinitionError(f"cannot serve metrics at {host}:{port}: {error.strerror or error}") from None
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        shown = f"[{host}]" if ":" in host else host
        try:
            yield f"http://{shown}:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            self._lookers.shutdown(wait=False, cancel_futures=True)


def parse_address(text: str) -> tuple[str, int]:
    """``PORT``, ``HOST:PORT`` or ``[IPv6]:PORT``; the host is 127.0.0.1 by default. Raises ValueError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{text!r} is not [HOST:]PORT, such as 9464 or 0.0.0.0:9464")
    return host, int(port)
