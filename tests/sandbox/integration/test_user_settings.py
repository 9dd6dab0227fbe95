"""The user's settings of registries: every tool inside uses the same mirror and certificates, and reads no password."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cantrip_acp.sandbox import Sandbox, SandboxOptions
from cantrip_acp.sandbox.policy.host_toolchains import Host

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

MAVEN = """<settings><localRepository>/x</localRepository>
<servers><server><id>m</id><username>ada</username><password>s3cret</password></server></servers>
<mirrors><mirror><id>m</id><url>https://ada:s3cret@maven.corp/all</url><mirrorOf>*</mirrorOf></mirror></mirrors></settings>"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    for name, text in {
        ".config/pip/pip.conf": f"[global]\nindex-url = https://ada:s3cret@pip.corp/simple\ncert = {home}/ca.pem\ncache-dir = /x\n",
        ".npmrc": f"registry=https://npm.corp/\n@own:registry=https://own.corp/\n//npm.corp/:_authToken=s3cret\n_auth=s3cret\n"
        f"cafile={home}/ca.pem\nemail=ada@corp\n@env:registry=https://${{S3CRET}}.corp/\n",
        ".config/uv/uv.toml": '[[index]]\nurl = "https://ada:s3cret@uv.corp/simple"\ndefault = true\nusername = "s3cret"\n',
        ".cargo/config.toml": '[source.crates-io]\nreplace-with = "m"\n[source.m]\nregistry = "sparse+https://cargo.corp/"\n'
        f'[registries.own]\nindex = "sparse+https://own.corp/"\ntoken = "s3cret"\n[build]\nrustc-wrapper = "/x"\n'
        f'[http]\ncainfo = "{home}/key.pem"\nproxy = "http://ada:s3cret@proxy"\n',
        ".m2/settings.xml": MAVEN,
        ".gitconfig": "[user]\n\tname = Ada\n[http]\n\tsslCAInfo = ~/ca.pem\n\textraHeader = s3cret\n[core]\n\tpager = /x\n"
        '[url "https://ada:s3cret@git.corp/"]\n\tinsteadOf = https://github.com/\n',
        "ca.pem": "-----BEGIN CERTIFICATE-----\n",
        "key.pem": "-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----\ns3cret\n",
    }.items():  # fmt: skip
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


ASK = {
    "pip": ("pip config list", ["global.index-url='https://pip.corp/simple'", "global.cert='@HOME@/ca.pem'"]),
    "npm": ("npm config get registry; npm config get @own:registry; npm config get cafile",
            ["https://npm.corp/", "https://own.corp/", "@HOME@/ca.pem"]),
    "cargo": ("cargo config get -Z unstable-options source 2>/dev/null || cat /.cargo/config.toml", ["sparse+https://cargo.corp/"]),
    "git": ("git config http.sslCAInfo; git ls-remote --get-url https://github.com/a/b", ["@HOME@/ca.pem", "https://git.corp/a/b"]),
    "cat": ("cat /etc/uv/uv.toml /etc/maven/settings.xml; cat ~/ca.pem; cat ~/key.pem ~/.npmrc ~/.m2/settings.xml 2>&1",
            ['url = "https://uv.corp/simple"', "https://maven.corp/all", "BEGIN CERTIFICATE"]),
}  # fmt: skip


@pytest.mark.parametrize("tool", ASK)
async def test_a_tool_inside_uses_them(tool: str, home: Path, tmp_path: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    work = tmp_path / "work"
    work.mkdir()
    path = str(Path(shutil.which(tool) or "").parent)
    host = Host.detect({"PATH": f"{path}:/usr/bin:/bin", "HOME": str(home)})
    command, expected = ASK[tool]
    outcome = await Sandbox(SandboxOptions(), work, host=host).run(
        f"{command}; env; cat /etc/npmrc /etc/pip.conf /etc/gitconfig"
    )
    for text in expected:
        assert text.replace("@HOME@", str(home)) in outcome.stdout, outcome
    assert "s3cret" not in outcome.stdout.lower() + outcome.stderr.lower()
    assert "PRIVATE KEY" not in outcome.stdout
    assert "No such file or directory" in outcome.stdout + outcome.stderr or tool != "cat"


async def test_no_settings_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    host = Host.detect({"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home")})
    assert {"/etc/npmrc", "/.cargo/config.toml", "/etc/maven/settings.xml"}.isdisjoint(dict(host.settings))
    outcome = await Sandbox(SandboxOptions(), tmp_path / "work", host=host).run(
        "ls -d /.cargo /etc/npmrc; env | grep -c ^MAVEN"
    )
    assert outcome.stdout == "0\n"


async def test_a_workspace_does_not_speak_for_the_user(home: Path, tmp_path: Path) -> None:
    """A relative path in the user's environment would lead into the folder in which Cantrip was started."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "evil.conf").write_text("[global]\nindex-url = https://evil.corp/\n")
    done = subprocess.run(
        ["python3", "-c", "import sys; from cantrip_acp.sandbox.policy.user_settings import user_settings; "
         "print(user_settings({'PIP_CONFIG_FILE': 'evil.conf'}, sys.argv[1]).files['/etc/pip.conf'])", str(home)],
        cwd=tmp_path / "work", capture_output=True, text=True, check=False, env={"PATH": _venv(), "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    assert "pip.corp" in done.stdout, done
    assert "evil" not in done.stdout


def _venv() -> str:
    import sys

    return f"{Path(sys.executable).parent}:/usr/bin:/bin"
