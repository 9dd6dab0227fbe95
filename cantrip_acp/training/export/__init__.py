"""Export: writes threads of a loom in the formats of trainers and trace stores. Each format has its own file.

All formats use the same input: what the crystal really saw (`core.history.replayed_context`), and which threads are exported
(`selection`). `core/exports.py` names the formats. Start with `trl_and_openai.py`.
"""

__all__ = ["rows", "selection", "verifiers"]
