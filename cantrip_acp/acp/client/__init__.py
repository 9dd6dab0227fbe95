"""An ACP client: starts an agent, talks to it over stdio and reports what it does.

Start with `client.py`."""
