"""The policy as a sandbox-exec profile. It cannot be run here: what is expected stands beside this file as text.

After a change that is meant: `GOLDEN=write pytest tests/sandbox/unit/test_seatbelt.py`, and read the difference.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cantrip_acp.sandbox import Policy, SandboxOptions
from cantrip_acp.sandbox.launch.seatbelt import PROGRAM, Profile, profile
from cantrip_acp.sandbox.policy.host_toolchains import Host
from cantrip_acp.sandbox.policy.policy import compose
from cantrip_acp.sandbox.policy.protected import Findings

GOLDEN = Path(__file__).parent / "golden"
WORK = "/Users/ada/work"
HOST = Host(
    uid=501,
    gid=20,
    user="ada",
    home="/Users/ada",
    system=(("/usr", None), ("/bin", None)),
    path=("/opt/homebrew/bin", "/usr/bin", "/bin"),
    tools=("/Users/ada/.pyenv", "/opt/homebrew"),
    links=(),
    environment=(),
    shell="/bin/bash",
    cores=8,
)
FOUND = {WORK: Findings(protected=(f"{WORK}/.git", f"{WORK}/sub/.git"), hidden=(f"{WORK}/.env", f"{WORK}/keys/a.pem"))}


def policy(**wards: object) -> Policy:
    return compose(
        replace(SandboxOptions(), **wards),  # type: ignore[arg-type]
        WORK,
        HOST,
        FOUND,
        existing=(f"{WORK}/.git",),
        gates=("done",),
        wire="/private/tmp/cantrip-x/wire1",
        replaced=((f"{WORK}/.git/config", "/private/tmp/cantrip-x/kept"),),
    )


def rendered(**wards: object) -> Profile:
    return profile(policy(**wards), home="/private/tmp/cantrip-x/home", temporary="/private/tmp/cantrip-x/tmp")


@pytest.mark.parametrize(
    ("name", "wards"),
    [
        ("read-only", {}),
        ("writable", {"bash_writable_paths": (WORK,)}),
        ("hosts", {"bash_network": ("example.org",)}),
        ("network", {"bash_network": True}),
    ],
)
def test_the_text(name: str, wards: dict[str, object]) -> None:
    made = rendered(**wards)
    text = made.text + "\n; Parameters:\n" + "".join(f"; {key}={path}\n" for key, path in made.parameters)
    path = GOLDEN / f"seatbelt-{name}.sb"
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_what_is_taken_away_comes_after_what_is_given() -> None:
    text = rendered(bash_writable_paths=(WORK,)).text
    order = ["(deny default)", '"READ_', '"WRITE_', '"GUARD_', '"HIDDEN_']
    found = [text.find(word) for word in order if word in text]
    assert found == sorted(found)
    assert text.rfind("(allow file") < text.find('"GUARD_')
    assert text.count("(") == text.count(")")


def test_paths_are_parameters_and_never_text() -> None:
    evil = '/Users/ada/")(allow default)("'
    made = profile(replace(policy(), readable=(evil,)), home="/h", temporary="/t")
    assert "allow default" not in made.text
    argv = made.argv(["/bin/bash", "-c", "true"])
    assert argv[0] == PROGRAM
    assert f"READ_0={evil}" in argv
    assert argv[-4:] == [made.text, "/bin/bash", "-c", "true"]
