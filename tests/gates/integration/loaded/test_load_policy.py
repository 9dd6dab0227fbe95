"""Which modules may be loaded: each ward alone, all of them together, none of them; names that no ward can allow."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cantrip_acp import Circle, DefinitionError, GateError, Wards
from cantrip_acp.gates.loaded.policy import Module, NameRefused, check_module, full_name
from cantrip_acp.gates.wards import COMPILE, compose
from tests.gates.integration.loaded.conftest import KIT, Make

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
SHA = hashlib.sha256(KIT.encode()).hexdigest()


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def ssh(key: Ed25519PrivateKey) -> str:
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{line.decode()} ada@example.org"


def signature(key: Ed25519PrivateKey = KEY, text: str = KIT) -> str:
    return base64.b64encode(key.sign(text.encode())).decode()


def judged(wards: dict[str, Any], workspace: Path | None = None, **args: Any) -> Module | str:
    """The module, or why it is refused."""
    args = {"module": "textkit", **({} if "path" in args else {"source": KIT}), **args}
    try:
        return check_module(args, Wards.of(wards, base=workspace), workspace)
    except GateError as error:
        return str(error)


@pytest.mark.parametrize(
    ("wards", "args", "refused"),
    [
        ({}, {}, "none of the wards"),
        ({"allow_compile_modules": []}, {}, "not allowed by the ward allow_compile_modules (it allows nothing)"),
        ({"allow_compile_modules": ["textkit"]}, {}, None),
        ({"allow_compile_modules": ["cantrip_acp.hot.textkit"]}, {}, None),
        ({"allow_compile_modules": ["textkit"]}, {"module": "cantrip_acp.hot.textkit"}, None),
        ({"allow_compile_modules": ["textki", "textkit2", "TEXTKIT", "textkit.a"]}, {}, "allow_compile_modules"),
        ({"allow_compile_modules": ["textkit"]}, {"module": "textkit.inner"}, "allow_compile_modules"),
        ({"allow_compile_modules": ["*"]}, {}, "allow_compile_modules"),
        ({"allow_compile_sha256": []}, {}, "allow_compile_sha256"),
        ({"allow_compile_sha256": [SHA]}, {}, None),
        ({"allow_compile_sha256": [SHA.upper()]}, {}, None),
        ({"allow_compile_sha256": [f"sha256:{SHA}"]}, {}, None),
        ({"allow_compile_sha256": [SHA]}, {"source": KIT + "\n"}, "allow_compile_sha256"),
        ({"allow_compile_sha256": [SHA[:-1]]}, {}, "allow_compile_sha256"),
        ({"allow_compile_modules": ["textkit"]}, {"sha256": SHA}, None),
        ({"allow_compile_modules": ["textkit"]}, {"sha256": "0" * 64}, "the source has the SHA-256"),
        ({"allow_compile_signers": []}, {"signature": signature()}, "does not match this source"),
        ({"allow_compile_signers": [public(KEY).hex()]}, {}, "requires a signature"),
        ({"allow_compile_signers": [public(KEY).hex()]}, {"signature": signature()}, None),
        ({"allow_compile_signers": [base64.b64encode(public(KEY)).decode()]}, {"signature": signature()}, None),
        ({"allow_compile_signers": [ssh(KEY)]}, {"signature": KEY.sign(KIT.encode()).hex()}, None),
        ({"allow_compile_signers": [ssh(OTHER), ssh(KEY)]}, {"signature": signature()}, None),
        ({"allow_compile_signers": [ssh(OTHER)]}, {"signature": signature()}, "does not match this source"),
        ({"allow_compile_signers": [ssh(KEY)]}, {"signature": signature(OTHER)}, "does not match this source"),
        ({"allow_compile_signers": [ssh(KEY)]}, {"signature": signature(text="x")}, "does not match this source"),
        ({"allow_compile_signers": [ssh(KEY)]}, {"signature": "zz"}, "cannot be read"),
        ({"allow_compile_signers": [ssh(KEY)]}, {"signature": ""}, "cannot be read"),
        ({"allow_compile_signers": [ssh(KEY)]}, {"signature": "0" * 5000}, "cannot be read"),
        ({"allow_compile_paths": ["/nowhere"]}, {}, "requires a file"),
        ({"allow_compile_modules": ["textkit"]}, {"path": "/etc/hostname"}, "without the ward allow_compile_paths"),
        ({"allow_compile_modules": ["textkit"]}, {"source": None}, "give either"),
        ({"allow_compile_modules": ["textkit"]}, {"source": "x = '\0'"}, "NUL"),
        ({"allow_compile_modules": ["textkit"]}, {"source": "#" * 1_048_577}, "1,048,576"),
    ],
)
def test_each_ward(wards: dict[str, Any], args: dict[str, Any], refused: str | None) -> None:
    found = judged(wards, **args)
    if refused is None:
        assert isinstance(found, Module), found
        assert (found.name, found.sha256) == ("cantrip_acp.hot.textkit", SHA)
    else:
        assert isinstance(found, str)
        assert refused in found


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    (work / "kits").mkdir(parents=True)
    (work / "kits/textkit.py").write_text(KIT)
    (work / "textkit.py").write_text(KIT)
    (work / ".env").write_text("TOKEN=bait")
    (work / "kits/.env").write_text("TOKEN=bait")
    (tmp_path / "outside.py").write_text(KIT)
    (work / "kits/out.py").symlink_to("../../outside.py")
    (work / "kits/up.py").symlink_to("../textkit.py")
    (work / "kits/in.py").symlink_to("textkit.py")
    return work


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("kits/textkit.py", True),
        ("./kits/../kits/textkit.py", True),
        ("kits/in.py", True),
        ("textkit.py", False),
        ("kits/../textkit.py", False),
        ("kits/up.py", False),
        ("kits/out.py", False),
        ("kits/.env", False),
        ("kits", False),
        ("kits/none.py", False),
        ("kitsx/textkit.py", False),
        ("../outside.py", False),
        ("/etc/passwd", False),
        ("kits/\0", False),
        ("", False),
    ],
)
def test_paths(workspace: Path, path: str, good: bool) -> None:
    found = judged({"allow_compile_paths": ["kits"]}, workspace, path=path)
    assert isinstance(found, Module) == good, found
    if isinstance(found, Module):
        assert found.path == str(workspace / "kits/textkit.py")
        assert found.source == KIT
    else:
        assert "bait" not in found


def test_one_file_as_a_path(workspace: Path) -> None:
    wards = {"allow_compile_paths": ["kits/textkit.py"]}
    assert isinstance(judged(wards, workspace, path="kits/textkit.py"), Module)
    assert "not allowed" in str(judged(wards, workspace, path="kits/in.py"))
    (workspace / "kits/textkit.py").unlink()
    (workspace / "kits/textkit.py").symlink_to("../textkit.py")
    assert isinstance(judged(wards, workspace, path="kits/textkit.py"), str)


def test_an_allowed_folder_that_became_a_link_leads_nowhere(workspace: Path) -> None:
    (workspace / "kits").rename(workspace / "old")
    (workspace / "kits").symlink_to(workspace.parent)
    assert isinstance(judged({"allow_compile_paths": ["kits"]}, workspace, path="kits/outside.py"), str)
    (workspace / "kits").unlink()
    (workspace / "kits").symlink_to("old")
    assert isinstance(judged({"allow_compile_paths": ["kits"]}, workspace, path="kits/textkit.py"), str)


def test_a_folder_outside_of_the_workspace(workspace: Path) -> None:
    outside = workspace.parent / "elsewhere"
    outside.mkdir()
    (outside / "kit.py").write_text(KIT)
    found = judged({"allow_compile_paths": [str(outside)]}, workspace, path=str(outside / "kit.py"))
    assert isinstance(found, Module), found
    assert isinstance(judged({"allow_compile_paths": [str(outside)]}, workspace, path="kits/textkit.py"), str)
    assert isinstance(judged({"allow_compile_paths": [str(outside)]}, None, path=str(outside / "kit.py")), Module)


def test_every_ward_that_is_given_must_admit_it(workspace: Path) -> None:
    wards: dict[str, Any] = {
        "allow_compile_modules": ["textkit"],
        "allow_compile_paths": ["kits"],
        "allow_compile_sha256": [SHA],
        "allow_compile_signers": [ssh(KEY)],
    }
    args = {"path": "kits/textkit.py", "signature": signature()}
    found = judged(wards, workspace, **args)
    assert isinstance(found, Module), found
    assert found.record() == {
        "module": "cantrip_acp.hot.textkit",
        "sha256": SHA,
        "path": str(workspace / "kits/textkit.py"),
        "signer": ssh(KEY),
    }
    for name, value in (
        ("allow_compile_modules", ["other"]),
        ("allow_compile_paths", ["other"]),
        ("allow_compile_sha256", ["0" * 64]),
        ("allow_compile_signers", [ssh(OTHER)]),
    ):
        for narrowed in (value, []):
            assert isinstance(judged({**wards, name: narrowed}, workspace, **args), str), name


@pytest.mark.parametrize(
    "name",
    [
        "cantrip_acp", "cantrip_acp.core.loop", "cantrip_acp.hot", "cantrip_acp.hot.", "cantrip_acp.hot..x", "Cantrip_ACP.loop",
        "cantrip_acp.gates.loaded", "cantrip_acp.gates.loaded.compile_and_load",
        "cantrip_acp.hot/../loop", "cantrip_acp.hot.../../loop",
        "cantrip_acp.hot.x.", "cantrip", "cantrip_acp2.x", "CANTRIP_ACP.HOT.x", ".textkit", "textkit.", "", " ", "textkit ",
        "textkit\n", "text-kit", "text/kit", "../textkit", "builtins", "sys", "os.path", "json", "__main__", "__init__",
        "_thread", "class", "cantrip_acp.hot.class", "cantrip_acp.hot.__init__", "a" * 101, "сantrip_acp.loop",
        "cantrip_acp\u200b.loop", "cantrip＿acp.loop", "ｔextkit", "tеxtkit", "cantrip_acp.hot.tеxtkit", "1kit", "*",
    ],
)  # fmt: skip
def test_names_that_nothing_can_allow(name: str) -> None:
    with pytest.raises(NameRefused):
        full_name(name)
    every = {"allow_compile_modules": [name or "x", "textkit"], "allow_compile_sha256": [SHA]}
    assert isinstance(judged(every, module=name), str)


def test_the_package_has_no_place_where_loaded_modules_are() -> None:
    import cantrip_acp

    assert cantrip_acp.__file__
    assert not list(Path(cantrip_acp.__file__).parent.glob("hot")) + list(
        Path(cantrip_acp.__file__).parent.glob("hot.*")
    )


@pytest.mark.parametrize(
    ("parent", "child", "both"),
    [
        (None, None, None),
        (None, ["a"], []),
        (["a"], None, []),
        (["a", "b"], ["b", "c"], ["b"]),
        ([], ["a"], []),
        (["a"], [], []),
    ],
)
def test_children(parent: list[str] | None, child: list[str] | None, both: list[str] | None) -> None:
    made = compose(*(Wards.of({} if w is None else {"allow_compile_modules": w}) for w in (parent, child)))
    assert made.allow_compile_modules == (None if both is None else tuple(both))
    if not both:
        assert isinstance(admitted_by(made), str)


def test_different_wards_of_parent_and_child_both_hold() -> None:
    parent, child = Wards.of({"allow_compile_modules": ["textkit"]}), Wards.of({"allow_compile_sha256": [SHA]})
    both = compose(parent, child)
    assert both.allow_compile_modules == ("textkit",)
    assert both.allow_compile_sha256 == (SHA,)
    assert isinstance(admitted_by(both), Module)
    assert isinstance(admitted_by(both, module="other"), str)
    assert isinstance(admitted_by(both, source="x = 1"), str)
    never = compose(parent, Wards())
    assert [getattr(never, name) for name in COMPILE] == [()] * 4
    assert compose(never, child).allow_compile_sha256 == ()


def admitted_by(wards: Wards, **args: Any) -> Module | str:
    try:
        return check_module({"module": "textkit", "source": KIT, **args}, wards, None)
    except GateError as error:
        return str(error)


@pytest.mark.parametrize(
    ("ward", "said"),
    [
        ({"allow_compile_sha256": ["abc"]}, "not a SHA-256"),
        ({"allow_compile_sha256": ["z" * 64]}, "not a SHA-256"),
        ({"allow_compile_signers": ["ada"]}, "not a public key"),
        ({"allow_compile_signers": ["ssh-rsa AAAA"]}, "not a public key"),
        ({"allow_compile_signers": ["0" * 62]}, "not a public key"),
    ],
)
def test_wards_that_mean_nothing_are_told_to_who_wrote_them(ward: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        _ = Circle("conversation", ["done", "compile_and_load"], {"max_turns": 1, **ward}).gates


async def test_nothing_is_started_for_what_is_refused(make: Make) -> None:
    loader = await make()
    record = await loader.load()
    assert record.is_error
    assert "no module may be compiled here" in record.result
    assert loader.pid == 0
    assert "No ward admits any module" in loader.entity.circle.gates["compile_and_load"].description
