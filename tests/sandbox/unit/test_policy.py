"""The policy and its arguments are pure: what is expected stands here as text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cantrip_acp.files import protected_paths
from cantrip_acp.files.protected_paths import is_secret_file, plain
from cantrip_acp.sandbox import SandboxOptions
from cantrip_acp.sandbox.launch.bubblewrap import HostPaths, arguments, encode
from cantrip_acp.sandbox.policy import protected
from cantrip_acp.sandbox.policy.host_toolchains import Host, find_tools
from cantrip_acp.sandbox.policy.policy import MIB, compose
from cantrip_acp.sandbox.policy.protected import NEVER_MADE, Findings, Survey

HOST = Host(
    uid=1000,
    gid=1000,
    user="ada",
    home="/home/ada",
    system=(("/usr", None), ("/bin", "usr/bin"), ("/lib", "usr/lib")),
    path=("/home/ada/.pyenv/shims", "/usr/bin", "/bin"),
    tools=("/home/ada/.pyenv",),
    links=(("/home/ada/python", ".pyenv/versions/3.12"),),
    environment=(("LANG", "de_DE.UTF-8"),),
    shell="/usr/bin/bash",
    cores=4,
)
PLACES = HostPaths(etc="/run/user/1000/cantrip-x/etc0", note="/run/user/1000/cantrip-x/note")


def test_arguments_of_a_writable_workspace() -> None:
    work = "/home/ada/work"
    findings = {
        work: Findings(
            protected=(f"{work}/.git", f"{work}/sub/.git", f"{work}/.vscode"),
            hidden=(f"{work}/.env", f"{work}/deep/er/.aws"),
        )
    }
    policy = compose(
        SandboxOptions(bash_writable_paths=(work,), bash_timeout_ms=5_000),
        work,
        HOST,
        findings,
        existing=(f"{work}/.git", f"{work}/.vscode"),
        gates=("done",),
        wire="/run/user/1000/cantrip-x/wire1",
    )
    got = arguments(policy, PLACES, folders=frozenset({f"{work}/deep/er/.aws"}))
    here = [
        "--unshare-user --unshare-ipc --unshare-pid --unshare-uts --unshare-cgroup-try --unshare-net",
        "--die-with-parent --new-session --cap-drop ALL --hostname sandbox",
        "--setenv GIT_CONFIG_COUNT 1",
        "--setenv GIT_CONFIG_KEY_0 safe.directory",
        "--setenv GIT_CONFIG_VALUE_0 *",
        "--setenv GIT_OPTIONAL_LOCKS 0",
        "--setenv GIT_PAGER cat",
        "--setenv GIT_TERMINAL_PROMPT 0",
        "--setenv HOME /home/ada",
        "--setenv LANG de_DE.UTF-8",
        "--setenv LOGNAME ada",
        "--setenv PAGER cat",
        "--setenv PATH /run/cantrip/bin:/home/ada/.pyenv/shims:/usr/bin:/bin",
        "--setenv SHELL /usr/bin/bash",
        "--setenv TERM dumb",
        "--setenv TMPDIR /tmp",
        "--setenv USER ada",
        "--symlink usr/bin /bin",
        "--dev /dev",
        "--perms 1777 --size 1073741824 --tmpfs /dev/shm",
        "--ro-bind /run/user/1000/cantrip-x/etc0 /etc",
        "--perms 0700 --size 1073741824 --tmpfs /home/ada",
        "--ro-bind /home/ada/.pyenv /home/ada/.pyenv",
        "--symlink .pyenv/versions/3.12 /home/ada/python",
        f"--bind {work} {work}",
        *sorted(
            [f"--ro-bind {p} {p}" for p in (f"{work}/.git", f"{work}/.vscode")]
            + [f"--ro-bind {PLACES.note} {work}/.env"],
            key=lambda line: line.split()[-1],
        ),
        f"--bind {work}/deep {work}/deep",
        f"--bind {work}/deep/er {work}/deep/er",
        f"--perms 0555 --size 4096 --tmpfs {work}/deep/er/.aws",
        f"--bind {work}/sub {work}/sub",
        f"--ro-bind {work}/sub/.git {work}/sub/.git",
        "--symlink usr/lib /lib",
        "--dir /mnt",
        "--dir /opt",
        "--proc /proc",
        "--ro-bind /run/user/1000/cantrip-x/wire1 /run/cantrip",
        "--perms 0700 --size 67108864 --tmpfs /run/cantrip/requests",
        "--symlink /tmp /run/postgresql",
        "--dir /srv",
        "--ro-bind-try /sys/devices/system /sys/devices/system",
        "--perms 1777 --size 1073741824 --tmpfs /tmp",
        "--ro-bind /usr /usr",
        "--dir /var/lib",
        "--dir /var/log",
        "--symlink /run /var/run",
        "--symlink /tmp /var/tmp",
        "--remount-ro /proc --remount-ro /dev --remount-ro /",
        f"--chdir {work}",
    ]
    assert got == " ".join(here).split(" ")


def test_arguments_of_nothing_but_the_defaults() -> None:
    policy = compose(SandboxOptions(), "/srv/data", HOST, {})
    got = arguments(policy, PLACES)
    assert "--unshare-net" in got
    assert [got[i + 1] for i, a in enumerate(got) if a == "--bind"] == []
    binds = [got[i + 1] for i, a in enumerate(got) if a == "--ro-bind"]
    assert binds == [PLACES.etc, "/home/ada/.pyenv", "/srv/data", "/usr"]
    assert "/" not in binds


def test_the_network_is_there_only_by_its_ward() -> None:
    assert "--unshare-net" not in arguments(compose(SandboxOptions(bash_network=True), "/srv/data", HOST, {}), PLACES)


def test_a_kept_home_is_bound() -> None:
    policy = compose(SandboxOptions(), "/srv/data", HOST, {}, home_source="/state/homes/x")
    got = arguments(policy, PLACES)
    at = got.index("--bind")
    assert got[at : at + 3] == ["--bind", "/state/homes/x", "/home/ada"]


def test_a_policy_cannot_be_changed() -> None:
    policy = compose(SandboxOptions(), "/srv/data", HOST, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.network = True  # type: ignore[misc]


def test_arguments_are_whole_before_bubblewrap_reads_them() -> None:
    assert encode(["--setenv", "A", "ü\n"]) == b"--setenv\0A\0\xc3\xbc\n\0"
    with pytest.raises(ValueError, match="NUL"):
        encode(["a\0b"])


def test_our_own_folders_are_hidden_where_they_lie_in_the_workspace() -> None:
    policy = (
        compose(SandboxOptions(), "/srv", HOST, {})
        if False
        else compose(SandboxOptions(), "/srv/data", HOST, {}, private=("/srv/data/state", "/elsewhere"))
    )
    assert policy.hidden == ("/srv/data/state",)


COPIES = (
    ".env~", ".env.swp", ".env.swo", "#.env#", ".#.env", ".env.bak", ".env.orig", ".env.old", ".env.save", ".env.~1~", ".env copy",
    ".netrc~", ".netrc.swp", ".netrc.bak", ".id_rsa.swp", "id_rsa~", "id_ed25519.bak", "#id_rsa#", ".npmrc.orig", "a.tfvars~",
    ".a.tfvars.swp", "service-account.json.bak", "store.p12.old", ".env.local~", ".env.example~",
)  # fmt: skip
"""What editors, merges and hurried people leave beside a file with secrets."""


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        (".env", True),
        (".env.local", True),
        (".env.production", True),
        (".envrc", True),
        (".env-backup", True),
        (".env.example", False),
        (".env.sample", False),
        (".environment", False),
        ("env", False),
        (".npmrc", True),
        ("id_rsa", True),
        ("id_rsa.pub", False),
        ("store.p12", True),
        ("package.json", False),
        *((name, True) for name in COPIES),
        *(
            (name, True)
            for name in (".ENV", "Prod.TFVARS", "x.auto.tfvars.json", "terraform.tfstate", "ID_work", "ID_RSA")
        ),
        *((name, True) for name in ("service-account.json", "gcp-service-account-prod.json", "Service_Account.JSON")),
        *(
            (name, False)
            for name in ("notes~", "README.md.bak", "id_map.json", "id_gen.py", "accounts.json", "#", "~", ".swp")
        ),
    ],
)
def test_names_of_secrets(name: str, hidden: bool) -> None:
    assert is_secret_file(plain(name)) is hidden


def test_a_survey_sees_what_changes(tmp_path: Path) -> None:
    survey = Survey(str(tmp_path))
    assert survey.refresh() == Findings()
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/.env").write_text("x")
    (tmp_path / ".git").mkdir()
    assert survey.refresh() == Findings(
        protected=(f"{tmp_path}/.git",), hidden=(f"{tmp_path}/a/b/.env",), names=frozenset({f"{tmp_path}/.git"})
    )
    (tmp_path / "a/b/.env").rename(tmp_path / "a/.env")
    (tmp_path / ".git").rmdir()
    assert survey.refresh() == Findings(hidden=(f"{tmp_path}/a/.env",))


def test_a_survey_looks_again_at_once_when_something_hidden_has_moved(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"folder{number}").mkdir()
    (tmp_path / "folder7/.env").write_text("x")
    survey = Survey(str(tmp_path))
    assert survey.refresh().hidden == (f"{tmp_path}/folder7/.env",)
    (tmp_path / "folder7").rename(tmp_path / "moved")
    assert survey.refresh().hidden == (f"{tmp_path}/moved/.env",)


def test_a_folder_cannot_be_made_to_be_passed_by(tmp_path: Path) -> None:
    """Nothing that a command can write makes the survey look away from a folder of the user's."""
    (tmp_path / "pyvenv.cfg").write_text("")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/.env").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert Survey(str(tmp_path)).refresh().hidden == (f"{tmp_path}/lib/.env",)


def tree(base: Path, *paths: str) -> None:
    for path in paths:
        target = base / path
        if path.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("#!/bin/sh\n")
            target.chmod(0o755)


def test_where_tools_lie(tmp_path: Path) -> None:
    home = tmp_path / "home"
    tree(
        home,
        ".pyenv/shims/python",
        ".pyenv/versions/3.12/bin/python",
        ".cargo/bin/cargo",
        ".cargo/credentials.toml",
        ".rustup/toolchains/x",
        ".nvm/versions/node/v22/bin/node",
        ".nvm/versions/node/v22/lib/node_modules/",
        ".local/share/uv/tools/ruff/bin/ruff",
        ".local/share/uv/tools/ruff/pyvenv.cfg",
        ".local/share/uv/credentials/x",
        ".local/bin/",
        "bin/mine",
        "conda/bin/conda",
        "conda/conda-meta/",
        "secret.txt",
    )
    (home / ".local/bin/ruff").symlink_to(home / ".local/share/uv/tools/ruff/bin/ruff")
    (home / "current").symlink_to(".nvm/versions/node/v22")
    path = [
        f"{home}/{p}"
        for p in (".pyenv/shims", ".cargo/bin", "current/bin", ".local/bin", "bin", "conda/bin", "missing/bin")
    ]
    found = find_tools([*path, str(home), "relative", "/usr/bin"], str(home))
    assert set(found.roots) == {
        f"{home}/{p}"
        for p in (".pyenv", ".cargo/bin", ".rustup", ".nvm", ".local/bin", ".local/share/uv/tools/ruff", "bin", "conda")
    }
    assert (f"{home}/current", ".nvm/versions/node/v22") in found.links
    assert [p for p in found.path if p != "/usr/bin"] == path[:-1]
    assert str(home) not in found.path


def test_a_workspace_environment_shows_its_interpreter(tmp_path: Path) -> None:
    home = tmp_path / "home"
    tree(home, ".local/share/uv/python/cpython-3.12/bin/python3", ".local/share/uv/python/cpython-3.12/lib/x")
    tree(tmp_path, "work/.venv/pyvenv.cfg", "work/.venv/bin/")
    (tmp_path / "work/.venv/bin/python").symlink_to(home / ".local/share/uv/python/cpython-3.12/bin/python3")
    found = find_tools([], str(home), [str(tmp_path / "work/.venv")])
    assert f"{home}/.local/share/uv/python" in found.roots


@pytest.mark.parametrize("target", ["notes.txt", "private/bin/tool", "private/bin/python3", "private"])
def test_a_link_that_calls_itself_python_shows_nothing(tmp_path: Path, target: str) -> None:
    """A repository may bring a link to anything under that name; what it leads to must be a Python that can be run."""
    home = tmp_path / "home"
    tree(home, "notes.txt", "private/lib/x", "private/bin/tool", "private/bin/python3")
    (home / "private/bin/python3").chmod(0o644)
    tree(tmp_path, "work/.venv/pyvenv.cfg", "work/.venv/bin/")
    (tmp_path / "work/.venv/bin/python3").symlink_to(home / target)
    found = find_tools([], str(home), [str(tmp_path / "work/.venv")])
    assert found.roots == (str(tmp_path / "work/.venv"),)


def test_the_sandbox_guards_the_names_that_gates_guard() -> None:
    """There is one list: the sandbox's code has none of its own."""
    for name in ("protected_by", "is_secret_file", "HIDDEN_FOLDERS", "KEY_SUFFIXES"):
        assert getattr(protected, name) is getattr(protected_paths, name)
    assert set(NEVER_MADE) == {row.name for row in protected_paths.PROTECTED_FILES if row.first}


@pytest.mark.parametrize(
    ("cores", "memory", "said", "processes", "bytes_of_all", "private"),
    [
        (2, 2048, None, 1024, 4096, 1024),
        (16, 64 * 1024, None, 2048, 32 * 1024, 16 * 1024),
        (16, 64 * 1024, 40, 40, 32 * 1024, 16 * 1024),
    ],
)
def test_limits_follow_the_machine(
    cores: int, memory: int, said: int | None, processes: int, bytes_of_all: int, private: int
) -> None:
    host = dataclasses.replace(HOST, cores=cores, memory=memory * MIB)
    limits = compose(SandboxOptions(sandbox_max_processes=said), None, host, {}).limits
    assert (limits.processes, limits.memory, limits.temporary) == (processes, bytes_of_all * MIB, private * MIB)
    assert limits.shared_memory == limits.temporary
    assert compose(SandboxOptions(), None, host, {}, memory=77 * MIB).limits.memory == 77 * MIB
