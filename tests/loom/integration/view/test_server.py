"""The tests of `tests/loom/unit/view/test_server.py` that start processes."""

from __future__ import annotations

import json
import threading

from cantrip_acp.loom.view import serve
from cantrip_acp.types.records import Turn, Utterance
from tests.loom.unit.view.test_server import ask
from tests.support.loom_stores import Place


def test_every_store_is_followed(kept: Place) -> None:
    loom = kept.open()
    root = loom.begin("c", {}, {}, "e")
    with serve(kept.where) as view:
        seen = ask(view, "/api/loom")[1]
        while seen["loading"]:
            seen = ask(view, "/api/loom")[1]
        assert seen["turns"] == 1
        assert "s3cret" not in json.dumps(seen)
        late = threading.Timer(0.3, lambda: loom.append(Turn("t_1", root, "c", "e", None, utterance=Utterance("new"))))
        late.start()
        version = ask(view, f"/api/wait?seen={seen['version']}&ms=20000")[1]["version"]
        late.join()
        assert version > seen["version"]
        assert ask(view, "/api/loom")[1]["turns"] == 2
        assert ask(view, "/api/rows?n=1")[1][0]["text"] == "new"
    loom.close()
