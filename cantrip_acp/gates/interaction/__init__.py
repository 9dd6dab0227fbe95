"""Gates for the answer, the task's data and the client: done, echo, read_context, ask_user, plan and client_terminal.

They may import the core and the gate contract, but not ACP. With a client, an interceptor answers ask_user and
client_terminal. Start with `done_echo.py`.
"""

__all__ = ["ask_user", "client_terminal", "read_context"]
