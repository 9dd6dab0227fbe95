"""A PostgreSQL server of the tests' own: Debian's programs in a temporary folder, on a loopback port, with a password."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.networks import free_port

PASSWORD = "s3cret%pass word"
QUOTED = "s3cret%25pass%20word"
_schemas = itertools.count()


class NoServer(Exception):
    """Why there can be none here."""


@dataclass
class Server:
    """A running server; ``stop`` and ``start`` as often as wanted."""

    programs: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    addresses: str = "127.0.0.1"
    buffers: str = "16MB"

    def listen_on(self, address: str) -> None:
        """Accept connections from the network of this address too, with the password. Restarts the server."""
        with open(self.folder / "data" / "pg_hba.conf", "a") as rules:
            rules.write(f"host all all {address}/24 scram-sha-256\n")
        self.addresses = f"127.0.0.1,{address}"
        self.stop()
        self.start()

    def url(self, loom: str, *, password: str = QUOTED, database: str = "postgres") -> str:
        """The address of a loom there."""
        return f"postgresql://keeper:{password}@127.0.0.1:{self.port}/{database}?loom={loom}"

    def new_schema(self) -> str:
        """An address whose tables are in an empty schema."""
        import psycopg

        name, base = f"schema_{next(_schemas)}", self.url("x").partition("?")[0]
        with psycopg.connect(base, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{base}?options=-csearch_path%3D{name}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = ["-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder)]
        # No test cuts the power. What the server has written outlives a kill of it all the same.
        settings = ["fsync=off", "full_page_writes=off", "autovacuum=off"]
        settings += [f"listen_addresses={self.addresses}", f"shared_buffers={self.buffers}", "max_connections=60"]
        words += [word for setting in settings for word in ("-c", setting)]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*_as_other("--pdeathsig", "INT"), str(self.programs / "postgres"), *words],
                stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip
        ready = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(600):
            if subprocess.run(ready).returncode == 0:
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise NoServer(f"the server did not start: {(self.folder / 'log').read_text()[-500:]}")

    def stop(self, by: int = signal.SIGINT) -> None:
        """End it: SIGINT as an administrator does, SIGQUIT as a crash does."""
        if self.process is not None:
            self.process.send_signal(by)
            self.process.wait(60)
            self.process = None


def _as_other(*more: str) -> list[str]:
    """PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return ["setpriv", *more] if shutil.which("setpriv") and more else []
    return ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *more]


def _place() -> str:
    """Where its folder is made: in memory if there is room, since each database is a thousand files to write and to remove."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30
    return str(memory) if roomy else "/tmp"


@contextmanager
def running(buffers: str = "16MB") -> Iterator[Server]:
    """A fresh server; ``buffers`` is its shared memory. Raises `NoServer`."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: float(p.parts[-3]))
    on_path = shutil.which("postgres")
    if not found and on_path is None:
        raise NoServer("no PostgreSQL server on this machine; apt-get install postgresql")
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        raise NoServer("PostgreSQL does not run as root, and there is no setpriv")
    programs = found[-1].parent if found else Path(str(on_path)).resolve().parent
    folder = Path(tempfile.mkdtemp(prefix="cantrip-pg-", dir=_place()))
    try:
        (folder / "pw").write_text(PASSWORD)
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
            os.chown(folder / "pw", 65534, 65534)
        made = subprocess.run(
            [*_as_other(), str(programs / "initdb"), "-D", str(folder / "data"), "-U", "keeper", "-E", "UTF8", "--no-sync",
             "--locale=C", "-A", "scram-sha-256", f"--pwfile={folder / 'pw'}"],
            capture_output=True, text=True, cwd=folder,
        )  # fmt: skip
        if made.returncode:
            raise NoServer(f"initdb failed: {made.stderr[-500:]}")
        server = Server(programs, folder, free_port(), buffers=buffers)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
