"""Unix sockets, debuggers and what is built on them: they work inside, and their supervisor survives what asks it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from pathlib import Path

import pytest

from cantrip_acp.sandbox.launch import unix_sockets
from tests.sandbox.integration.conftest import Make


async def ok(make: Make, command: str, **wards: object) -> str:
    outcome = await make(writable=True, **wards).run(command)
    assert outcome.exit_code == 0, (outcome.stdout, outcome.stderr, outcome.ended_because)
    return outcome.stdout


async def python(make: Make, program: str, **wards: object) -> list[str]:
    return (await ok(make, f"cat > /tmp/p.py <<'EOF'\n{program}\nEOF\npython3 /tmp/p.py", **wards)).split()


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


async def test_processes_that_share_by_sockets(make: Make) -> None:
    program = """
import multiprocessing
def work(line): line.put("worked")
if __name__ == "__main__":
    shared = multiprocessing.Manager().dict(); shared["a"] = "managed"; print(shared["a"])
    multiprocessing.set_start_method("forkserver", force=True)
    line = multiprocessing.Queue()
    multiprocessing.Process(target=work, args=(line,)).start()
    print(line.get())
"""
    assert await python(make, program) == ["managed", "worked"]


async def test_a_server_and_many_clients(make: Make) -> None:
    program = """
import asyncio, os, socket
async def answer(reader, writer):
    writer.write((await reader.readline()).upper()); await writer.drain(); writer.close()
async def ask(path, n):
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"%d x\\n" % n); got = await reader.read(); writer.close()
    return got == b"%d X\\n" % n
async def main():
    os.makedirs("deep/folder"); os.symlink("deep", "link")
    for path in ("s", "deep/folder/s", "\\0abstract"):
        server = await asyncio.start_unix_server(answer, path, backlog=100)
        print(all(await asyncio.gather(*[ask(path, n) for n in range(100)])))
    print(await ask("link/folder/s", 1), await ask(os.path.abspath("link/../s"), 1))
    os.rename("deep/folder", "moved"); print(await ask("moved/s", 1))
asyncio.run(main())
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    server, client = socket.socket(socket.AF_UNIX, kind), socket.socket(socket.AF_UNIX, kind)
    server.bind(f"kind{kind}"); server.listen(); client.connect(f"kind{kind}"); peer, _ = server.accept()
    fd = os.open("/proc/self/status", os.O_RDONLY); socket.send_fds(client, [b"x"], [fd])
    print(os.read(socket.recv_fds(peer, 1, 1)[1][0], 4).decode())
"""
    assert await python(make, program) == ["True"] * 6 + ["Name:"[:4]] * 2


async def test_errors_are_those_of_the_kernel(make: Make) -> None:
    program = """
import ctypes, errno, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(number, address, length):
    back = libc.connect(number, address, length)
    print("OK" if back == 0 else errno.errorcode[ctypes.get_errno()])
def path(text): return struct.pack("=H", 1) + text + bytes(108 - len(text))
new = lambda kind=socket.SOCK_STREAM: socket.socket(socket.AF_UNIX, kind)
held = [new()]
server = new(); server.bind("s"); server.listen()
packets = new(socket.SOCK_SEQPACKET); packets.bind("p"); packets.listen()
stale = new(); stale.bind("stale"); stale.listen(); stale.close()
open("file", "w").close(); os.mkdir("d")
for name in (b"none", b"none/x", b"file", b"file/x", b"d", b"stale", b"p", b"x" * 108):
    with new() as made: call(made.fileno(), path(name), 110)
one = new(); call(one.fileno(), path(b"s"), 110); call(one.fileno(), path(b"s"), 110)
for length in (0, 1, 2, 111, 128, 129, -1, 2**31 - 1): call(held[0].fileno(), path(b"s") + bytes(30), length)
call(held[0].fileno(), ctypes.c_void_p(8), 110); call(held[0].fileno(), ctypes.c_void_p(2**64 - 4096), 110)
call(999, path(b"s"), 110); call(0, path(b"s"), 110)
internet = socket.socket(); call(internet.fileno(), path(b"s"), 110)
internet.settimeout(5); print(internet.connect_ex(("127.0.0.1", 9)) == errno.ECONNREFUSED)
call(held[0].fileno(), path(b"s"), 110)
"""
    expected = "ENOENT ENOENT ECONNREFUSED ENOTDIR ECONNREFUSED ECONNREFUSED EPROTOTYPE ENOENT OK EISCONN"
    expected += " EINVAL" * 8 + " EFAULT EFAULT EBADF ENOTSOCK EAFNOSUPPORT True OK"
    got = await python(make, program)
    # A path of 108 bytes is longer than a path of this folder may be, or does not exist.
    assert " ".join(got).replace("ENAMETOOLONG", "ENOENT") == expected


async def test_datagrams_stay_refused_and_streams_send_nowhere(make: Make, workspace: Path) -> None:
    with socket.socket(socket.AF_UNIX) as named:
        named.bind(str(workspace / "host"))
        named.listen()
        program = """
import errno, socket
def tried(work):
    try: work(); print("OK")
    except OSError as error: print(errno.errorcode[error.errno])
tried(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)); tried(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_RAW))
tried(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    pair = socket.socketpair(socket.AF_UNIX, kind)
    for one in (socket.socket(socket.AF_UNIX, kind), *pair):
        tried(lambda: one.sendto(b"x", "host")); tried(lambda: one.sendmsg([b"x"], [], 0, "host"))
    print(*{len(pair[n].recv(10, socket.MSG_DONTWAIT)) for n in (0, 1)} if kind == socket.SOCK_SEQPACKET else "-")
"""
        got = await python(make, program)
        assert got[:3] == ["EPERM", "EPERM", "EPROTONOSUPPORT"]
        # A stream refuses an address. A packet ignores it and goes to the other end, which is inside.
        assert got[3:9] == ["ENOTSUP"] * 2 + ["EISCONN"] * 4
        assert got[10:16] == ["ENOTCONN"] * 2 + ["OK"] * 4
        named.setblocking(False)
        with pytest.raises(BlockingIOError):
            named.accept()


async def test_the_supervisor_survives_what_asks_it(make: Make) -> None:
    """Programs that are killed while they connect, wait for ever, or ask without end; and then everything works."""
    program = """
import errno, os, signal, socket, time
server = socket.socket(socket.AF_UNIX); server.bind("/tmp/s"); server.listen(0)
children = []
for n in range(120):
    child = os.fork()
    if child == 0:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            made = socket.socket(socket.AF_UNIX)
            try: made.connect("/tmp/s" if n % 2 else "/tmp/none")
            except OSError: pass
        os._exit(0)
    children.append(child)
time.sleep(1)
for child in children: os.kill(child, signal.SIGKILL); os.waitpid(child, 0)
for n in range(400):
    one = socket.socket(socket.AF_UNIX); one.bind(f"/tmp/n{n}"); one.listen(); os.unlink(f"/tmp/n{n}")
server.close()
own = socket.socket(socket.AF_UNIX); own.bind("/tmp/own"); own.listen()
client, end = socket.socket(socket.AF_UNIX), time.monotonic() + 15
# The calls of the killed programs end now that nobody listens, but perhaps not before this one.
while (error := client.connect_ex("/tmp/own")) == errno.EAGAIN and time.monotonic() < end: time.sleep(0.01)
print("works" if error == 0 else error)
"""
    before = len(os.listdir("/proc/self/fd"))
    assert await python(make, program) == ["works"]
    assert not unix_sockets._sandboxes
    for _ in range(600):
        if len(os.listdir("/proc/self/fd")) <= before + 6:
            break
        await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= before + 6


async def test_a_command_that_waits_to_connect_ends_at_its_time(make: Make) -> None:
    program = "import socket\nl = socket.socket(socket.AF_UNIX); l.bind('/tmp/s'); l.listen(0)\n"
    program += "held = [socket.socket(socket.AF_UNIX) for n in range(3)]\nfor one in held: one.connect('/tmp/s')\n"
    outcome = await make(bash_timeout_ms=1500).run(f'python3 -c "{program}"')
    assert outcome.timed_out
    assert not unix_sockets._sandboxes
    assert await python(make, "print('next')") == ["next"]


async def test_every_process_inside_has_the_filter_and_no_capabilities(make: Make) -> None:
    text = await ok(make, "grep -hE '^(Seccomp|CapEff|NoNewPrivs)' /proc/1/status /proc/self/status")
    assert text.split() == ["CapEff:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2", "Seccomp_filters:", "2"] * 2


async def test_the_process_of_the_supervisor_is_not_handed_out(make: Make) -> None:
    program = """
import errno, socket, struct
server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
server.bind("s"); server.listen(); client.connect("s"); peer, _ = server.accept()
print(struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
try: print("handle", peer.getsockopt(socket.SOL_SOCKET, 77))
except OSError as error: print(errno.errorcode[error.errno])
"""
    assert await python(make, program) == ["0", "ENOPROTOOPT"]


async def test_with_the_open_network_they_are_refused(make: Make) -> None:
    program = """
import ctypes, socket
try: socket.socket(socket.AF_UNIX); print("made")
except PermissionError: print("refused")
print(ctypes.CDLL(None).ptrace(0, 0, 0, 0))
"""
    assert await python(make, program, bash_network=True) == ["refused", "-1"]


async def test_a_program_with_address_sanitizer(make: Make) -> None:
    needs("gcc")
    text = await ok(
        make,
        "echo 'int main(void) { return 0; }' > a.c; echo 'f(void) {}' > b.c\n"
        "if ! gcc -fsanitize=address a.c -o a; then echo none; exit; fi; ./a && echo clean\n"
        "printf '#include <stdlib.h>\\nint main(void) { malloc(7); return 0; }' > l.c; gcc -fsanitize=address l.c -o l; ./l 2>&1 "
        "| grep -o 'detected memory leaks'",
        bash_timeout_ms=60_000,
    )
    if text == "none\n":
        pytest.skip("this gcc has no AddressSanitizer")
    assert text.splitlines() == ["clean", "detected memory leaks"]


async def test_a_debugger_and_a_tracer(make: Make) -> None:
    needs("gcc", "gdb", "strace")
    text = await ok(
        make,
        "echo 'int main(void) { return 7; }' > a.c; gcc -g a.c -o a\n"
        "gdb -nx -batch -ex 'break main' -ex run -ex bt ./a 2>&1 | grep '^#0'\n"
        "sleep 60 & gdb -nx -batch -p $! -ex 'info proc' 2>&1 | grep -o 'exe = .*sleep'; kill %1\n"
        "strace -f -e trace=execve ./a 2>&1 | grep -c execve; setarch -R true && echo same addresses",
        bash_timeout_ms=60_000,
    )
    assert "main () at a.c:1" in text
    assert "sleep'"[:-1] in text
    assert text.endswith("1\nsame addresses\n")


async def test_tmux_gpg_and_a_server_of_node(make: Make) -> None:
    needs("tmux", "gpg", "node")
    text = await ok(
        make,
        "tmux -L t new-session -d 'sleep 60' && tmux -L t ls | grep -o '1 windows'; tmux -L t kill-server\n"
        "export GNUPGHOME=/tmp/g; mkdir -m 700 /tmp/g\n"
        "gpg -q --batch --passphrase '' --quick-gen-key a@example.org ed25519 2>/dev/null\n"
        "echo text | gpg -q --clearsign 2>/dev/null | grep -o 'BEGIN PGP SIGNED MESSAGE'; gpgconf --kill gpg-agent\n"
        """node -e 'const net = require("net"); const s = net.createServer(c => c.end("node answers"));
s.listen("n", () => net.connect("n").on("data", d => console.log(String(d))).on("close", () => s.close()))'""",
        bash_timeout_ms=60_000,
    )
    assert text.splitlines() == ["1 windows", "BEGIN PGP SIGNED MESSAGE", "node answers"]


async def test_a_browser(make: Make) -> None:
    needs("chromium")
    page = "data:text/html,<p>shown</p>"
    text = await ok(
        make,
        f"chromium --headless --no-sandbox --disable-gpu --user-data-dir=/tmp/c --dump-dom '{page}' 2>/dev/null",
        bash_timeout_ms=120_000,
        sandbox_max_processes=1024,
    )
    assert "<p>shown</p>" in text


async def test_a_database_with_its_defaults(make: Make) -> None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if not found:
        pytest.skip("PostgreSQL is not installed")
    if os.getuid() == 0:
        pytest.skip("PostgreSQL does not run as root")
    bin_ = found[-1].parent
    text = await ok(
        make,
        f"{bin_}/initdb -D /tmp/d -A trust --no-sync -U me >/dev/null && {bin_}/pg_ctl -D /tmp/d -w -l /tmp/log start >/dev/null "
        f"|| cat /tmp/log; {bin_}/psql -U me -Atc 'select 42' postgres; {bin_}/pg_ctl -D /tmp/d stop -m fast >/dev/null",
        bash_timeout_ms=120_000,
    )
    assert text == "42\n"
