"""Training data from looms: rewards, exports to trainers' formats, and imports of foreign traces.

`trainer` trains a small model (`cantrip train`) on the folders of `examples`. Nothing here imports a front end (CLI, ACP, LSP).
Start with `judge.py`, then `export/trl_and_openai.py` and `importing/import_file.py`.
The names of ``__all__`` are public, and imported when they are first used. The adapters (`adapters.trl_rollouts` …) are modules of
their own, because each imports its trainer.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cantrip_acp.training.judge import Verdict as Verdict
    from cantrip_acp.training.judge import record_verdict as record_verdict
    from cantrip_acp.training.judge import verify as verify

__all__ = ["Verdict", "export", "importing", "judge", "record_verdict", "trainer", "verify"]


def __getattr__(name: str) -> Any:
    if name not in ("Verdict", "record_verdict", "verify"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.judge"), name)
    return value
