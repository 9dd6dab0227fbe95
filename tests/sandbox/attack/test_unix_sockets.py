"""Unix sockets of the host: none is reached, however its path is written, and whatever changes while it is looked up."""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from collections.abc import Callable

import pytest

from tests.sandbox.attack.attack import Attack, control, held
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import Defence, option, unnotified, unsupervised

_FIRST = """
import array, threading
def reach(path, kind=socket.SOCK_STREAM, made=None):
    made = made or socket.socket(socket.AF_UNIX, kind)
    try: made.connect(path); broke("connected to", path)
    except OSError as error: print(error, path)
    finally: made.close()
def serve(path):
    server = socket.socket(socket.AF_UNIX)
    server.bind(path); server.listen(100)
    return server
def wait_for(path):
    end = time.monotonic() + 15
    while not os.path.exists(path) and time.monotonic() < end: time.sleep(0.002)
def loop(seconds, work):
    end = time.monotonic() + seconds
    while time.monotonic() < end: work()
def drained(server):
    def drain():
        while True: server.accept()[0].close()
    threading.Thread(target=drain, daemon=True).start()
def address(path): return struct.pack("=H", 1) + path.encode() + bytes(40 - len(path))
"""


def _open(scene: Scene, path: str, kind: int = socket.SOCK_STREAM) -> None:
    """A socket of the host that listens in the workspace. It is the one that `Scene.connected` looks at."""
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(path if path.startswith("\0") else str(scene.workspace / path))
    made.listen()
    made.setblocking(False)
    before, scene.unix = scene.unix, made
    before.close()


def _before(scene: Scene) -> None:
    os.makedirs(scene.workspace / "d", exist_ok=True)
    _open(scene, "d/s")


def _packets(scene: Scene) -> None:
    os.makedirs(scene.workspace / "d", exist_ok=True)
    _open(scene, "d/s", socket.SOCK_SEQPACKET)


def _abstract(scene: Scene) -> None:
    _open(scene, f"\0{scene.abstract}-stream")


def _when_asked(scene: Scene) -> None:
    """Open one when the command asks for it, by making the file ``go``."""

    def work() -> None:
        end = time.monotonic() + 15
        while not (scene.workspace / "go").exists() and time.monotonic() < end:
            time.sleep(0.002)
        _open(scene, "later")

    threading.Thread(target=work, daemon=True).start()


def attack(
    name: str,
    program: str,
    prepare: Callable[[Scene], None] = _before,
    outer: str | None = None,
    defence: Defence = unsupervised(),  # noqa: B008
) -> Attack:
    return Attack(
        name,
        _FIRST + program,
        defence,
        python=True,
        prepare=prepare,
        host=Scene.connected,
        outer=outer,
    )


_TRACED = f"""
target = address("d/s")
GETTID, CONNECT = {186 if platform.machine() == "x86_64" else -1}, 42
made = socket.socket(socket.AF_UNIX)
buffer = ctypes.create_string_buffer(target)
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), 19)
    os._exit(0 if libc.syscall(GETTID, made.fileno(), buffer, 40) == 0 else 1)
registers = (ctypes.c_ulonglong * 27)()
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
os.waitpid(child, 0)
while True:
    libc.ptrace(24, child, None, None)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        if os.WEXITSTATUS(status) == 0: broke("connected")
        break
    libc.ptrace(12, child, None, ctypes.byref(registers))
    if registers[15] == GETTID:
        registers[15] = CONNECT
        libc.ptrace(13, child, None, ctypes.byref(registers))
"""

ATTACKS = [
    attack("a relative path", "reach('d/s')"),
    attack("an absolute path", "reach('@WORK@/d/s')"),
    attack("a path with dots", "reach('d/../d/./s'); os.chdir('d'); reach('../d/s'); reach('s')"),
    attack("a symbolic link", "os.symlink('@WORK@/d/s', 'link'); reach('link')"),
    attack("a symbolic link to the folder", "os.symlink('d', 'link'); reach('link/s')"),
    attack("a hard link", "os.link('d/s', 'hard'); reach('hard')"),
    attack("a renamed socket", "os.rename('d/s', 'd/t'); reach('d/t'); os.rename('d/t', 'd/s')"),
    attack("a renamed folder", "os.rename('d', 'e'); reach('e/s'); os.rename('e', 'd')"),
    attack("the root by /proc", "reach('/proc/self/root@WORK@/d/s'); reach(f'/proc/{os.getpid()}/root@WORK@/d/s')"),
    attack("the working folder by /proc", "reach('/proc/self/cwd/d/s'); reach(f'/proc/{os.getpid()}/cwd/d/s')"),
    attack(
        "a descriptor by /proc",
        "fd, at = os.open('d', os.O_RDONLY), os.open('d/s', os.O_PATH)\n"
        "reach(f'/proc/self/fd/{fd}/s'); reach(f'/proc/self/fd/{at}')",
    ),
    attack("packets", "reach('d/s', socket.SOCK_SEQPACKET)", _packets),
    attack("one that is opened while the command runs", "open('go', 'w').close(); wait_for('later'); reach('later')", _when_asked),
    attack(
        "one that takes the place of an own socket",
        "own = serve('later'); os.rename('later', 'own'); open('go', 'w').close(); wait_for('later'); reach('later')\n"
        "os.rename('later', 'own'); reach('own')",
        _when_asked,
    ),
    attack(
        "a socket that another process made and passed",
        """
a, b = socket.socketpair()
if os.fork() == 0:
    made = socket.socket(socket.AF_UNIX); socket.send_fds(a, [b"x"], [made.fileno()]); os._exit(0)
_, (got,), _, _ = socket.recv_fds(b, 1, 1)
reach("d/s", made=socket.socket(fileno=got))
""",
    ),
    attack("a thread with its own descriptors and folder", """
def work():
    libc.unshare(0x400 | 0x200); os.chdir("d"); reach("s")
thread = threading.Thread(target=work); thread.start(); thread.join()
"""),
    attack("a link that changes meanwhile", """
drained(serve("own"))
for name, to in (("one", "own"), ("two", "d/s")): os.symlink(to, name)
def swap():
    while True:
        for name, to in (("x", "own"), ("x", "d/s")):
            os.symlink(to, name + ".new"); os.rename(name + ".new", name)
os.symlink("own", "x"); threading.Thread(target=swap, daemon=True).start()
def work():
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(5)
        try: made.connect("x")
        except OSError: pass
loop(3, work)
"""),
    attack("an address that changes meanwhile", """
drained(serve("own"))
buffer = ctypes.create_string_buffer(address("own"))
def swap():
    while True:
        for path in ("own", "d/s"): ctypes.memmove(buffer, address(path), 40)
threading.Thread(target=swap, daemon=True).start()
def work():
    with socket.socket(socket.AF_UNIX) as made: libc.connect(made.fileno(), buffer, 40)
loop(3, work)
"""),
    attack("a descriptor that changes meanwhile", """
drained(serve("own"))
inet, unix = socket.socket(), [socket.socket(socket.AF_UNIX)]
place = os.dup(inet.fileno())
def swap():
    while True:
        for made in (inet, unix[0]): os.dup2(made.fileno(), place)
threading.Thread(target=swap, daemon=True).start()
buffers = [ctypes.create_string_buffer(address(path)) for path in ("own", "d/s")]
def work():
    before, unix[0] = unix[0], socket.socket(socket.AF_UNIX)
    for buffer in buffers * 3: libc.connect(place, buffer, 40)
loop(3, work)
"""),
    attack("a listening descriptor that changes meanwhile", """
own, other = socket.socket(socket.AF_UNIX), socket.socket()
own.bind("own")
place = os.dup(own.fileno())
def swap():
    while True:
        for made in (own, other): os.dup2(made.fileno(), place)
threading.Thread(target=swap, daemon=True).start()
loop(1, lambda: libc.listen(place, 5))
reach("d/s")
"""),
    attack("a filter of its own that goes on with the call", """
class Code(ctypes.Structure): _fields_ = [("length", ctypes.c_ushort), ("at", ctypes.c_void_p)]
steps = ((0x20, 0, 0, 0), (0x15, 0, 1, @CONNECT@), (6, 0, 0, 0x7FC00000), (6, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
libc.prctl(38, 1, 0, 0, 0)
listener = libc.syscall(@SECCOMP@, 1, 8, ctypes.byref(Code(4, ctypes.cast(code, ctypes.c_void_p))))
print("listener", listener, ctypes.get_errno())
if listener < 0:
    print("without", libc.syscall(@SECCOMP@, 1, 0, ctypes.byref(Code(4, ctypes.cast(code, ctypes.c_void_p)))))
    reach("d/s")
else:
    import fcntl
    threading.Thread(target=reach, args=("d/s",), daemon=True).start()
    asked = bytearray(80); fcntl.ioctl(listener, 0xC0502100, asked)
    fcntl.ioctl(listener, 0xC0182101, struct.pack("=QqiI", struct.unpack_from("=Q", asked)[0], 0, 0, 1)); time.sleep(1)
""".replace("@CONNECT@", "42" if platform.machine() == "x86_64" else "203").replace(
        "@SECCOMP@", "317" if platform.machine() == "x86_64" else "277"), defence=unnotified()),
    attack("a call that a tracer changes", _TRACED, outer=None if platform.machine() == "x86_64" else "x86-64 only"),
    Attack(
        "an abstract name",
        _FIRST + "reach('\\0@ABSTRACT@-stream')",
        option("--unshare-net"),
        python=True,
        prepare=_abstract,
        host=Scene.connected,
    ),
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_held(attack: Attack, scene: Scene) -> None:
    await held(attack, scene)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_control(attack: Attack, scene: Scene) -> None:
    if (why := await control(attack, scene)) is not None:
        pytest.skip(f"unprovable here: {why}")
