"""A command of the product for the shells of tests: has the server that forks (`fork_server.py`) start it, and ends as it ends.

    python -IS fork_client.py SOCKET SETTINGS MODULE PROGRAM ARGUMENT...

The program itself is executed where the server is gone, or where a setting of Python or of the language is not the server's.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LANGUAGE = ("LANG", "LANGUAGE", "TZ", "LD_PRELOAD", "LD_LIBRARY_PATH")
_SAME = {("PYTHONPATH", ROOT), ("PYTHONIOENCODING", "utf-8"), ("PYTHONDONTWRITEBYTECODE", "1")}

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python itself reads when it starts, and that make a difference to the server's start."""
    found = {k: v for k, v in environment.items() if k.startswith(("PYTHON", "LC_")) or k in _LANGUAGE}
    return dict(found.items() - _SAME)


def main(address: str, expected: str, module: str, program: str, *arguments: str) -> int:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if settings(os.environ) != json.loads(expected):
            raise OSError
        connection.connect(address)
        request = {"module": module, "argv": [program, *arguments], "path": os.path.dirname(program)}
        request |= {"cwd": os.getcwd(), "env": dict(os.environ), "session": False}
        # From the request on, a signal is for the command; it waits until it can be passed on.
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        pid = int(connection.recv(64))
    except (OSError, ValueError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        os.execv(program, [program, *arguments])
    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    code = os.waitstatus_to_exitcode(int(connection.recv(64)))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
