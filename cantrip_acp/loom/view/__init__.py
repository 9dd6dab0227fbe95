"""A loom as a web page: served on the loopback interface (`serve`), or written to one HTML file (`write_html`).

    from cantrip_acp.loom.view import serve
    with serve("x.loom.jsonl") as view:
        webbrowser.open(view.link("t_0198f2c4a1b2c3d4e5f6"))

Editors and the command line call this; nothing here imports them. Start with `page_server.py` and `routes.py`. The page's
own files are in ``page/``: plain modules that the browser loads without a build step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_acp.loom.view.html_export import write_html as write_html
    from cantrip_acp.loom.view.page_server import View as View
    from cantrip_acp.loom.view.page_server import serve as serve

__all__ = ["View", "assets", "html_export", "index", "serve", "summary", "write_html"]


def __getattr__(name: str) -> Any:
    if name == "write_html":
        from cantrip_acp.loom.view.html_export import write_html

        return write_html
    if name in ("View", "serve"):
        from cantrip_acp.loom.view import page_server

        return getattr(page_server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
