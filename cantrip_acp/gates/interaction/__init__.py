"""Gates that end a cast or use the client: done, echo, ask_user, plan and client_terminal.

They may import the core and the gate contract, never ACP: an interceptor of the client answers ask_user and
client_terminal. Start with `done_echo.py`.
"""
