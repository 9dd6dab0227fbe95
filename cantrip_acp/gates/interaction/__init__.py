"""Gates that end a cast or use the client: done, echo, ask_user, plan and client_terminal.

They import the gate contract and the events, never the ACP code: interceptors and handlers of the client do the rest.
Start with `done_echo.py`.
"""
