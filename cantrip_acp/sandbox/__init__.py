"""The sandbox: entity commands and code cells run here, never outside it.

`policy/` decides what is visible and writable. `launch/` runs a command under that policy. `worker/` (host side) and
`inside/` (sandbox side) run code cells. `network/` contains the filtering proxy, `gate_ipc/` the gate calls of shell
commands.
Only the importers listed in .importlinter (contract only-the-sandbox-knows-the-sandbox) may import from here. Start
reading with `launch/sandbox.py`.
"""
