"""How this package was installed, for messages that say how to add what is missing.

The messages name the missing packages themselves, not ``cantrip-acp[extra]``: whatever this package was installed from (a
folder, a wheel, an index) may be gone, and a package of its name on a public index may be a stranger's.
"""

from __future__ import annotations

import os
import shlex
import sys
from importlib.util import find_spec

DISTRIBUTION = "cantrip-acp"


def install_command(extra: str) -> str:
    """The shell command that adds the packages of an extra to this installation: by pip, pipx or uv, whichever made it.

    >>> install_command("mcp").endswith("'mcp>=2.0' 'uvicorn>=0.31.1'")
    True
    """
    packages = shlex.join(requirements(extra))
    if os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
        return f"pipx inject {DISTRIBUTION} {packages}"
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None:
        return f"uv pip install --python {python} {packages}"
    return f"{python} -m pip install {'--break-system-packages ' * _is_managed()}{packages}"


def requirements(extra: str) -> list[str]:
    """The requirements of an extra, without those of the package itself. Raises ValueError if there is no such extra."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        about = metadata(DISTRIBUTION)
    except PackageNotFoundError:  # its folder is on PYTHONPATH
        return [f"{os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))}[{extra}]"]
    if extra not in (about.get_all("Provides-Extra") or ()):
        raise ValueError(f"{DISTRIBUTION} has no extra {extra!r}")
    marked = (each.partition(";") for each in about.get_all("Requires-Dist") or ())
    return [each.strip() for each, _, marker in marked if marker.replace('"', "'").strip() == f"extra == '{extra}'"]


def _is_managed() -> bool:
    """Whether the system's packages are here, where pip installs only if it is told to (PEP 668)."""
    import sysconfig

    return sys.prefix == sys.base_prefix and os.path.exists(
        os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    )
