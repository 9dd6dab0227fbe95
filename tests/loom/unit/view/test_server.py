"""The page's server, as a browser, a stranger and a careless program meet it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cantrip_acp import Loom
from cantrip_acp.loom.view import View, serve
from cantrip_acp.types.errors import LoomError
from cantrip_acp.types.records import Observation, Output, Turn, Utterance
from tests.support import view_looms as looms


def token(view: View) -> str:
    return view.url.partition("token=")[2]


def ask(
    view: View, path: str, *, method: str = "GET", body: bytes | None = None, key: str | None = "", **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """Status, JSON or text, headers. ``key`` empty is the right token, None is none."""
    connection = http.client.HTTPConnection("127.0.0.1", view.port, timeout=30)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        given["Authorization"] = f"Bearer {key or token(view)}"
    try:
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        data = answer.read()
        told = {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()
    return answer.status, json.loads(data) if "json" in told.get("content-type", "") else data.decode(), told


def reward(view: View, wish: dict[str, Any], **headers: str) -> tuple[int, Any]:
    origin = {"Origin": f"http://127.0.0.1:{view.port}", "Content_Type": "application/json"} | headers
    status, said, _ = ask(
        view, "/api/reward", method="POST", body=json.dumps(wish).encode(), **{k: v for k, v in origin.items() if v}
    )
    return status, said


def test_the_address_is_of_this_machine_and_secret(view: View, sample: Path) -> None:
    assert urlsplit(view.url).hostname == "127.0.0.1"
    assert len(token(view)) >= 40
    assert view.link("t_1").endswith("&turn=t_1")
    with serve(sample) as other:
        assert token(other) != token(view)
        assert ask(view, "/api/loom", key=token(other))[0] == 403


def test_only_loopback_listens(view: View) -> None:
    addresses = {
        a[4][0]
        for a in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        if not a[4][0].startswith("127.")
    }
    for address in addresses:
        with socket.socket() as probe:
            probe.settimeout(2)
            assert probe.connect_ex((address, view.port)) != 0


@pytest.mark.parametrize("key", [None, "wrong", "é", "x" * 5000])
def test_without_the_token_nothing_is_told(view: View, key: str | None) -> None:
    for path in ("/api/loom", "/api/rows?n=0", "/api/turn?n=1", "/api/search?q=median", "/api/wait", "/api/nothing"):
        status, said, _ = ask(view, path, key=key.encode().decode("latin-1") if key else key)
        assert status == 403
        assert "cantrip loom view" in said["error"]
        assert "median" not in json.dumps(said)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "evil.example:{port}", "localhost.evil:{port}", "", "127.0.0.1:1"]
)
def test_another_name_is_refused(view: View, host: str) -> None:
    for path in ("/", "/main.js", "/api/loom"):
        status, said, _ = ask(view, path, Host=host.format(port=view.port))
        assert status == 403
        assert "127.0.0.1" in said["error"]


def test_localhost_and_a_proxy_by_name(view: View, sample: Path) -> None:
    assert ask(view, "/api/loom", Host=f"localhost:{view.port}")[0] == 200
    with serve(sample, hosts=["box.example:8443"]) as proxied:
        assert ask(proxied, "/api/loom", Host="box.example:8443", Origin="https://box.example:8443")[0] == 200
        assert ask(proxied, "/api/loom", Host="other.example:8443")[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_another_page_is_refused_even_with_the_token(view: View, headers: dict[str, str]) -> None:
    assert ask(view, "/api/loom", **headers)[0] == 403


def test_every_answer_carries_the_headers(view: View, sample: Path) -> None:
    for path, key in (("/", None), ("/main.js", None), ("/api/loom", ""), ("/api/loom", None), ("/nothing", None)):
        _, _, told = ask(view, path, key=key)
        policy = told["content-security-policy"]
        for part in (
            "default-src 'none'",
            "script-src 'self'",
            "trusted-types 'none'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ):
            assert part in policy
        assert "unsafe" not in policy
        assert "*" not in policy
        assert told["referrer-policy"] == "no-referrer"
        assert told["x-content-type-options"] == "nosniff"
        assert told["cross-origin-opener-policy"] == "same-origin"
        assert told["cross-origin-resource-policy"] == "same-origin"
        assert told["x-frame-options"] == "DENY"
        assert told["cache-control"] == "no-store"
    with serve(sample, frames=["vscode-webview:"]) as framed:
        told = ask(framed, "/")[2]
        assert "frame-ancestors vscode-webview:" in told["content-security-policy"]
        assert "x-frame-options" not in told


@pytest.mark.parametrize(
    "path",
    ["/../serving.py", "/..%2fserving.py", "/%2e%2e/serving.py", "//etc/passwd", "/page/main.js", "/main.js/", "/__init__.py",
     "/..\\serving.py", "/main.js%00.html", "/favicon.ico", "/api", "/api/", "/api/../main.js"],
)  # fmt: skip
def test_no_other_file_is_served(view: View, path: str) -> None:
    assert ask(view, path)[0] == 404


def test_the_shell_has_nothing_of_the_loom(view: View) -> None:
    for path in ("/", "/main.js", "/view.css", "/source.js"):
        status, text, _ = ask(view, path, key=None)
        assert status == 200
        assert token(view) not in text
        assert "sample.loom" not in text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT"])
def test_other_methods_are_not_known(view: View, method: str) -> None:
    assert ask(view, "/api/loom", method=method)[0] in (405, 501)


def test_a_reward_is_written(view: View, sample: Path) -> None:
    assert reward(view, {"id": "t_000001", "reward": 0.5, "note": "so so"})[0] == 200
    with Loom.open(sample, readonly=True) as loom:
        assert loom.turn("t_000001").reward == 0.5
    deadline = time.monotonic() + 60
    while ask(view, "/api/loom")[1]["rewards"] == 5:
        ask(view, "/api/wait?seen=0")
        assert time.monotonic() < deadline
    given = ask(view, "/api/rewards?from=5")[1]["given"]
    assert [(g["turn"], g["reward"], g["note"]) for g in given] == [(1, 0.5, "so so")]
    assert given[0]["by"]


def test_a_reward_is_refused(view: View, sample: Path) -> None:
    good = {"id": "t_000001", "reward": 1}
    before = sample.read_bytes()
    for headers in (
        {"Origin": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        assert reward(view, good, **headers)[0] == 403
    assert reward(view, good, Content_Type="text/plain")[0] == 415
    for wish in (
        {},
        {"id": "t_000001"},
        good | {"reward": "1"},
        good | {"reward": 1e300},
        good | {"x": 1},
        good | {"note": "n" * 5000},
    ):
        assert reward(view, wish)[0] == 400
    assert reward(view, good | {"id": "t_nowhere"})[0] == 404
    assert reward(view, good | {"note": "n" * 80_000})[0] == 413
    assert ask(view, "/api/reward")[0] == 404
    assert sample.read_bytes() == before
    with Loom.open(sample):
        status, said = reward(view, good)
        assert status == 409
        assert "session is writing" in said["error"]
    with serve(sample, readonly=True) as shut:
        assert reward(shut, good)[0] == 403
        assert ask(shut, "/api/loom")[1]["readonly"] is True


def test_questions_that_make_no_sense(view: View) -> None:
    for path in ("nodes?from=-1", "nodes?from=x", "rows?n=1,x", "rows?n=" + "9" * 40, "turn?n=99999", "turn?id=t_no", "cast?n=77",
                 "wait?seen=" + "9" * 20, "turn?n=²", "find?id="):  # fmt: skip
        status, said, _ = ask(view, f"/api/{path}".encode().decode("latin-1").replace("Â²", "%C2%B2"))
        assert status in (400, 404, 503), path
        assert said["error"]


def test_what_the_page_asks_for(view: View) -> None:
    about = ask(view, "/api/loom")[1]
    assert about["turns"] == 14
    assert about["problems"] == []
    nodes = ask(view, "/api/nodes")[1]
    assert nodes["parent"][:4] == [-1, 0, 1, 2]
    assert len(nodes["parent"]) == 14
    numbers = ask(view, "/api/numbers")[1]
    assert numbers["flags"][1] & 1
    assert numbers["gates"][2] == ["read_file"]
    assert ask(view, "/api/numbers?from=5")[1]["from"] == 5
    rows = ask(view, "/api/rows?n=1,2,13,999")[1]
    assert [row["n"] for row in rows] == [1, 2, 13]
    turn = ask(view, "/api/turn?id=t_000002")[1]
    assert turn["forks"][0]["strategy"] == "replay"
    assert ask(view, "/api/turn?n=0")[1]["cantrip"]["call"]["temperature"] == 0.2
    casts = ask(view, "/api/casts")[1]["events"]
    assert [c["intent"] for c in casts if c.get("fork") and c["event"] == "start"] == [
        "Mend it with the standard library instead."
    ]
    assert ask(view, "/api/cast?n=0")[1]["context"][0]["mime"] == "image/png"
    hits = ask(view, "/api/search?q=MEDIAN")[1]
    assert hits["next"] is None
    assert len(hits["hits"]) == 9
    assert ask(view, "/api/search?q=")[1] == {"hits": [], "next": None}


def test_long_texts_come_in_part(tmp_path: Path) -> None:
    path = tmp_path / "long.loom.jsonl"
    with Loom.open(path) as loom:
        root = loom.begin("c", {}, {}, "e")
        loom.append(
            Turn(
                "t_1",
                root,
                "c",
                "e",
                None,
                utterance=Utterance("x"),
                observation=Observation((), Output(stdout="y" * 900_000)),
            )
        )
    with serve(path) as view:
        part = ask(view, "/api/turn?n=1")[1]
        assert (part["cut"], len(part["observation"]["output"]["stdout"])) == (1, 262_144)
        full = ask(view, "/api/turn?n=1&whole=1")[1]
        assert (full["cut"], len(full["observation"]["output"]["stdout"])) == (0, 900_000)


def test_a_damaged_loom_shows_what_is_good_and_says_what_is_not(sample: Path) -> None:
    lines = sample.read_bytes().splitlines(keepends=True)
    sample.write_bytes(b"".join([*lines[:6], b"{nonsense\n", *lines[6:]]) + b'{"type": "turn", "id": "t_torn')
    before = sample.read_bytes()
    with serve(sample) as view:
        about = ask(view, "/api/loom")[1]
        while about["loading"]:
            about = ask(view, "/api/loom")[1]
        assert about["turns"] == 14
        assert any("line 7" in problem for problem in about["problems"])
    assert sample.read_bytes() == before


def test_a_loom_that_is_replaced_is_said_to_be(sample: Path) -> None:
    with serve(sample) as view:
        seen = ask(view, "/api/loom")[1]
        other = sample.with_suffix(".other")
        other.write_bytes(sample.read_bytes())
        os.replace(other, sample)
        deadline = time.monotonic() + 60
        while ask(view, "/api/loom")[1]["broken"] is None:
            ask(view, f"/api/wait?seen={seen['version']}&ms=500")
            assert time.monotonic() < deadline
        assert ask(view, "/api/turn?n=1")[0] == 200


def test_what_is_no_loom(tmp_path: Path) -> None:
    with pytest.raises(LoomError, match=r"(?i)no such file"):
        serve(tmp_path / "nowhere.loom.jsonl")
    with pytest.raises(LoomError):
        serve(tmp_path)


def test_the_port_is_taken(view: View, sample: Path) -> None:
    with pytest.raises(OSError, match="in use"):
        serve(sample, port=view.port)


def test_closing_ends_everything(sample: Path) -> None:
    before = threading.active_count()
    view = serve(sample)
    waiting = threading.Thread(target=lambda: _quietly(lambda: ask(view, "/api/wait?seen=1&ms=20000")))
    waiting.start()
    time.sleep(0.3)
    began = time.monotonic()
    view.close()
    view.close()
    waiting.join(60)
    assert not waiting.is_alive()
    assert time.monotonic() - began < 18  # else the question waits for its 20 s
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", view.port)) != 0
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before


def _quietly(act: Any) -> None:
    try:
        act()
    except (OSError, http.client.HTTPException):
        pass


ODD = (
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n",
    b"POST /api/reward HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
)


def test_too_many_connections_and_odd_requests_do_no_harm(view: View) -> None:
    held = []
    for _ in range(80):
        connection = socket.create_connection(("127.0.0.1", view.port), timeout=60)
        held.append(connection)
    for connection in held:
        connection.close()
    for odd in ODD:
        with socket.create_connection(("127.0.0.1", view.port), timeout=60) as raw:
            raw.sendall(odd)
            raw.settimeout(1)
            _quietly(lambda raw=raw: raw.recv(65536))
    deadline = time.monotonic() + 60
    while True:
        try:
            assert ask(view, "/api/loom")[0] == 200
            break
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_body_that_is_not_read_is_not_the_next_request(view: View) -> None:
    hidden = b"GET /api/loom HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n\r\n" % (
        view.port,
        token(view).encode(),
    )
    with socket.create_connection(("127.0.0.1", view.port), timeout=60) as raw:
        raw.sendall(
            b"GET /main.js HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: %d\r\n\r\n%s"
            % (view.port, len(hidden), hidden)
        )
        said = b""
        while piece := raw.recv(65536):
            said += piece
    assert said.count(b"HTTP/1.1 200") == 1
    assert b'"location"' not in said


def test_a_large_loom_is_served_in_pieces(tmp_path: Path) -> None:
    path = looms.large(tmp_path / "large.loom.jsonl", 4_500)
    with serve(path) as view:
        nodes = ask(view, "/api/nodes")[1]
        assert len(nodes["parent"]) == 4_501
        first = ask(view, "/api/numbers?from=1999")[1]
        assert (first["from"], len(first["flags"])) == (0, 2000)
        last = ask(view, "/api/numbers?from=4100")[1]
        assert (last["from"], len(last["flags"])) == (4100, 401)
        assert len(ask(view, "/api/rows?n=" + ",".join(map(str, range(1000))))[1]) == 400
        found, at = [], 0
        while at is not None:
            answer = ask(view, f"/api/search?q=a+needle&from={at}")[1]
            found += answer["hits"]
            at = answer["next"]
        assert [hit["n"] for hit in found] == [4_499]
