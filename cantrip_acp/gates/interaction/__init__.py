"""Gates that end a cast or use the client: done, echo, ask_user, plan and client_terminal.

They may import the core and the gate contract, never ACP: the client's interceptors answer in their place. Start with
`done_echo.py`.
"""
