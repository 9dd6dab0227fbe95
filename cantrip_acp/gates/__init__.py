"""Gates: the tools through which an entity acts outside its medium (§4.3).

There is one contract, one executor, and one file or folder for each family of gates. Gates may import the core, `git/`,
`files/`, `text/`, loom records, and the sandbox if they run or restrict something. They never import ACP, the CLI or
recipes. Start with `contract.py` (what a gate is), `executor.py` (how it is called) and `registry.py` (names).
"""

__all__ = [
    "atomic_write", "confinement", "contract", "dynamic_gates", "files", "function_gates", "git", "interaction",
    "known_texts", "mcp", "ports", "registry", "sandbox_options", "search", "wards", "web",
]  # fmt: skip  # fmt: skip
