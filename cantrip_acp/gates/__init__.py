"""Gates: the tools through which an entity acts outside its medium (§4.3).

There is one contract, and one file or folder for each family of gates; `wards.py` has the limits. Gates may import `loom/`,
`git/`, `files/`, `text/`, and the sandbox if they run or restrict something. They never import the core, ACP, the CLI or
recipes. Start with `contract.py` (what a gate is) and `registry.py` (names); `core.casting.gate_executor` calls them.
"""

__all__ = [
    "atomic_write", "confinement", "contract", "dynamic_gates", "files", "function_gates", "git", "interaction",
    "known_texts", "mcp", "ports", "registry", "sandbox_options", "search", "services", "wards",
    "web",
]  # fmt: skip
