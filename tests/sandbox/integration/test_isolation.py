"""What a command must not see and must not do. The host is looked at afterwards, not only what the command says."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from cantrip_acp.gates.sandbox_options import code_paths
from cantrip_acp.gates.wards import Wards
from cantrip_acp.sandbox import Sandbox, SandboxOptions
from cantrip_acp.sandbox.launch.runtime_dir import remove_passwords
from cantrip_acp.sandbox.policy.protected import NEVER_MADE
from cantrip_acp.types.errors import DefinitionError, SandboxError
from tests.sandbox.integration.conftest import Make, both_back_ends


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if ".git/" not in str(p))


@both_back_ends
async def test_nothing_of_the_environment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cret-value")
    outcome = await make().run("env; cat /proc/*/environ | tr '\\0' '\\n'")
    assert "s3cret" not in outcome.stdout
    assert "MY_API_KEY" not in outcome.stdout


async def test_no_process_of_the_host(make: Make) -> None:
    with subprocess.Popen(["sleep", "61.25"]) as child:
        outcome = await make().run("cat /proc/*/cmdline | tr '\\0' ' '; ls -d /proc/[0-9]* | wc -l")
        child.kill()
    # This command's own text is there, in pieces that do not spell what is looked for.
    assert "61.25" not in outcome.stdout
    assert int(outcome.stdout.split()[-1]) < 10


@both_back_ends
async def test_no_network_at_all(make: Make, workspace: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = await Sandbox(SandboxOptions(), workspace).run(f"exec 3<>/dev/tcp/127.0.0.1/{port}")
        assert outcome.exit_code != 0
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()
        open_one = await make(bash_network=True).run(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo yes")
        assert open_one.stdout == "yes\n"


async def test_no_unix_socket_even_with_the_network(workspace: Path, make: Make) -> None:
    path = str(workspace / "s")
    abstract = f"\0cantrip-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hidden:
        named.bind(path)
        named.listen()
        hidden.bind(abstract)
        program = (
            "import socket\n"
            "for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n"
            "    try: socket.socket(socket.AF_UNIX, kind).connect('s'); print('connected')\n"
            "    except OSError as e: print(e.errno)\n"
            f"    try: a, b = socket.socketpair(socket.AF_UNIX, kind); a.sendto(b'x', {abstract!r}); print('sent')\n"
            "    except OSError as e: print(e.errno)\n"
        )
        outcome = await make(bash_network=True, writable=True).run(f"python3 - <<'EOF'\n{program}EOF")
        assert "connected" not in outcome.stdout
        assert "sent" not in outcome.stdout
        assert len(outcome.stdout.split()) == 4, outcome.stderr


@both_back_ends
async def test_nothing_outside_can_be_read_or_written(workspace: Path, tmp_path: Path, make: Make) -> None:
    (tmp_path / "beside").write_text("private")
    box = make(writable=True)
    outcome = await box.run(
        f"cat ../beside {tmp_path}/beside; echo x > ../beside; echo x > {tmp_path}/new; rm -rf {tmp_path}/beside; "
        "echo x > /etc/passwd; echo x > /usr/x; mkdir /x; cat /etc/shadow; ls /home /root/.ssh; ls -A /var/log"
    )
    assert outcome.stdout == ""
    assert (tmp_path / "beside").read_text() == "private"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["beside", "work"]
    assert listing(workspace) == []


@both_back_ends
async def test_links_do_not_lead_out(workspace: Path, tmp_path: Path, make: Make) -> None:
    (tmp_path / "beside").write_text("private")
    (workspace / "link").symlink_to(tmp_path / "beside")
    outcome = await make(writable=True).run("cat link; echo x > link; ln -s / root; cat root/etc/shadow")
    assert outcome.stdout == ""
    assert (tmp_path / "beside").read_text() == "private"


@both_back_ends
async def test_the_workspace_is_read_only_unless_a_ward_says_otherwise(workspace: Path, make: Make) -> None:
    (workspace / "src").mkdir()
    (workspace / "file").write_text("x")
    outcome = await make().run("cat file; echo y > file; touch new src/new")
    assert outcome.stdout == "x"
    assert listing(workspace) == ["file", "src"]
    outcome = await make(bash_writable_paths=["src"]).run("touch src/new && touch new")
    assert outcome.exit_code != 0
    assert listing(workspace) == ["file", "src", "src/new"]


async def test_a_writable_path_that_is_not_there_is_an_error_and_is_not_made(workspace: Path, make: Make) -> None:
    with pytest.raises(DefinitionError, match=r"build/out does not exist\. Make the folder \(mkdir -p .*build/out\)"):
        make(bash_writable_paths=["build/out"])
    with pytest.raises(DefinitionError, match="build/out does not exist"):
        code_paths(Wards.of({"code_writable_paths": ["build/out"]}, base=workspace), workspace)
    assert listing(workspace) == []
    (workspace / "build/out").mkdir(parents=True)
    assert (await make(bash_writable_paths=["build/out"]).run("echo x > build/out/file")).exit_code == 0
    assert listing(workspace) == ["build", "build/out", "build/out/file"]


@both_back_ends
async def test_gits_own_folder_is_read_only_as_a_whole(repository: Path, make: Make) -> None:
    before = {p: p.read_bytes() for p in (repository / ".git").rglob("*") if p.is_file()}
    outcome = await make(writable=True).run(
        "echo '[core] fsmonitor=evil' >> .git/config; echo evil > .git/hooks/pre-commit; mv .git .other; rm -rf .git;"
        "mv .git/hooks .git/h; ln -sf evil .git/hooks; git config core.pager evil; git add -A; chmod 777 .git; touch ok"
    )
    assert outcome.exit_code == 0
    assert (repository / "ok").exists()
    assert {p: p.read_bytes() for p in (repository / ".git").rglob("*") if p.is_file()} == before
    assert not (repository / ".other").exists()


async def test_the_parent_of_a_repository_cannot_be_renamed(repository: Path, tmp_path: Path) -> None:
    """The writable folder holds the repository: moving it away would leave room for another with hooks of its own."""
    box = Sandbox(SandboxOptions(bash_writable_paths=(str(tmp_path),)), repository)
    outcome = await box.run(f"mv {repository} {tmp_path}/moved; mkdir -p {repository}/.git/hooks; echo x > .git/config")
    assert not (tmp_path / "moved").exists()
    assert "[core]" in (repository / ".git/config").read_text()
    assert outcome.exit_code != 0


async def test_what_is_protected_is_moved_away_and_leaves_nothing(workspace: Path, make: Make) -> None:
    box = make(writable=True)
    for name in NEVER_MADE:
        for words in (
            f"mkdir {name}; echo x > {name}/f",
            f"echo x > n; mv n {name}",
            f"ln -s / {name}",
            f"mkfifo {name}",
        ):
            outcome = await box.run(words)
            # It may be moved away between two steps of the command.
            assert outcome.exit_code in (0, 1), outcome
            assert [each.name for each in outcome.quarantined] == [name]
            assert f"cantrip: moved away {name} (" in outcome.stderr
            assert not os.path.lexists(workspace / name), (name, words)
    left = await box.run("ls -A")
    assert (left.exit_code, left.stdout) == (0, "")
    assert listing(workspace) == []


UNTIL_GO = "until [ -e go ]; do sleep 0.02; done; rm go"


async def test_protected_where_it_exists(workspace: Path, make: Make) -> None:
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode/settings.json").write_text("{}")
    (workspace / ".mcp.json").write_text("{}")
    (workspace / "sub/.idea").mkdir(parents=True)
    (workspace / "sub/.idea/x.xml").write_text("x")
    box = make(writable=True)
    outcome = await box.run(
        "cat .mcp.json; for f in .mcp.json .vscode/settings.json sub/.idea/x.xml; do echo evil > $f; rm -f $f; done;"
        "mv sub other; sed -i s/x/y/ sub/.idea/x.xml; rm -rf .vscode"
    )
    assert outcome.stdout == "{}"
    assert (workspace / ".mcp.json").read_text() == "{}"
    assert (workspace / ".vscode/settings.json").read_text() == "{}"
    assert (workspace / "sub/.idea/x.xml").read_text() == "x"


async def test_a_protected_link_is_refused(workspace: Path, make: Make) -> None:
    (workspace / "real").mkdir()
    (workspace / ".vscode").symlink_to("real")
    with pytest.raises(SandboxError, match=r"\.vscode is a symbolic link"):
        make(writable=True)
    assert (await make().run("ls -A")).exit_code == 0


async def test_environment_files_are_hidden(workspace: Path, make: Make) -> None:
    (workspace / "sub").mkdir()
    for name in (".env", ".env.local", "sub/.env", "sub/.npmrc", "id_ed25519"):
        (workspace / name).write_text("TOKEN=s3cret")
    (workspace / "server.key").write_text("s3cret")
    (workspace / "server.key").chmod(0o600)
    (workspace / ".env.example").write_text("TOKEN=example")
    (workspace / "linked").symlink_to(".env")
    box = make(writable=True)
    outcome = await box.run(
        "grep -r s3cret . ; cat .env sub/.env linked server.key sub/.npmrc; cat .env.example;"
        "echo x > .env; rm .env; mv .env other; mv sub o;"
        "ln .env hard; cp .env copied"
    )
    assert "s3cret" not in outcome.stdout
    assert "TOKEN=example" in outcome.stdout
    assert outcome.stdout.count("TOKEN=masked-by-cantrip") >= 3
    assert (workspace / ".env").read_text() == "TOKEN=s3cret"
    assert (workspace / "sub/.env").exists()
    # One that appears later is hidden from the next command on.
    (workspace / "sub" / "deep").mkdir()
    (workspace / "sub/deep/.env").write_text("TOKEN=s3cret")
    time.sleep(0.06)
    assert "s3cret" not in (await box.run("cat sub/deep/.env")).stdout


async def test_the_home_folder_is_hidden(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tools are shown, what lies beside them is not."""
    from cantrip_acp.sandbox.policy.host_toolchains import Host

    home = tmp_path / "home"
    tools = home / ".local/bin"
    tools.mkdir(parents=True)
    (tools / "mytool").write_text("#!/bin/sh\necho tool works\n")
    (tools / "mytool").chmod(0o755)
    (home / ".cargo/bin").mkdir(parents=True)
    (home / ".cargo/credentials.toml").write_text("s3cret")
    (home / ".netrc").write_text("s3cret")
    (home / ".ssh").mkdir()
    (home / ".ssh/id_rsa").write_text("s3cret")
    found = Host.detect({"HOME": str(home), "PATH": f"{tools}:{home}/.cargo/bin:/usr/bin:/bin"})
    outcome = await Sandbox(SandboxOptions(), workspace, host=found).run(
        "mytool; echo $HOME; grep -rs s3cret ~ ; cat ~/.netrc ~/.ssh/id_rsa ~/.cargo/credentials.toml; ls -A ~"
    )
    assert outcome.stdout.startswith(f"tool works\n{home}\n")
    assert "s3cret" not in outcome.stdout
    assert ".ssh" not in outcome.stdout


async def test_what_a_make_tells_its_own_commands_is_not_told_to_these(workspace: Path) -> None:
    """With ``-n`` in MAKEFLAGS, a make in the sandbox would only print what it would do."""
    from cantrip_acp.sandbox.policy.host_toolchains import Host

    given = {
        "MAKEFLAGS": "n --jobserver-auth=3,4",
        "MFLAGS": "-n",
        "MAKELEVEL": "1",
        "MAKEFILES": "/x",
        "MAKEOVERRIDES": "x",
    }
    box = Sandbox(SandboxOptions(), workspace, host=Host.detect({**os.environ, **given}))
    outcome = await box.run("env | grep -i ^MA; env | grep ^MF; env | grep -c ^HOME=")
    assert outcome.stdout == "1\n"


async def test_registries_and_certificates_of_the_user_arrive_without_passwords(
    workspace: Path, tmp_path: Path
) -> None:
    """A file with a private key is not shown, and a variable that names what is not there is not passed."""
    from cantrip_acp.sandbox.policy.host_toolchains import Host

    ca, key, tool = tmp_path / "ca.pem", tmp_path / "both.pem", tmp_path / "rust"
    ca.write_text("-----BEGIN CERTIFICATE-----\n")
    key.write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----\n")
    tool.mkdir()
    (tool / "toolchain").write_text("stable\n")
    given = {
        "PATH": "/usr/bin:/bin",
        "PIP_INDEX_URL": "https://ada:s3cret@mirror.corp/simple",
        "PIP_EXTRA_INDEX_URL": "https://one.corp/simple https://t0ken-s3cret@two.corp/simple",
        "GOPROXY": "https://u:s3cret@go.corp,direct",
        "NODE_EXTRA_CA_CERTS": str(ca),
        "PIP_CERT": str(key),
        "REQUESTS_CA_BUNDLE": str(tmp_path / "nowhere.pem"),
        "RUSTUP_HOME": str(tool),
        "DENO_DIR": str(tmp_path / "nothing"),
        "AWS_SECRET_ACCESS_KEY": "s3cret",
    }
    box = Sandbox(SandboxOptions(), workspace, host=Host.detect(given))
    outcome = await box.run("env; cat $NODE_EXTRA_CA_CERTS $RUSTUP_HOME/toolchain; cat " + str(key))
    lines = outcome.stdout.splitlines()
    assert "s3cret" not in outcome.stdout
    assert "PIP_INDEX_URL=https://mirror.corp/simple" in lines
    assert "PIP_EXTRA_INDEX_URL=https://one.corp/simple https://two.corp/simple" in lines
    assert "GOPROXY=https://go.corp,direct" in lines
    assert lines[-2:] == ["-----BEGIN CERTIFICATE-----", "stable"]
    assert not [line for line in lines if line.startswith(("PIP_CERT", "REQUESTS_CA_BUNDLE", "DENO_DIR"))]


async def test_accounts_of_the_system_are_there_and_other_people_are_not(make: Make) -> None:
    outcome = await make().run(
        "getent passwd; echo; getent group; echo; id -un; getent passwd $(id -un) | cut -d: -f6; echo ~"
    )
    users, groups, own = (part.splitlines() for part in outcome.stdout.split("\n\n"))
    accounts = {line.split(":")[0]: line.split(":") for line in users}
    me = pwd.getpwuid(os.getuid()).pw_name
    assert own == [me, own[2], own[2]]
    ours = {entry.pw_name for entry in pwd.getpwall() if entry.pw_uid < 1000 or entry.pw_uid == 65534} | {me, "nobody"}
    assert set(accounts) == ours
    assert {"root", grp.getgrgid(os.getgid()).gr_name if os.getgid() < 1000 else me} <= {
        g.split(":")[0] for g in groups
    }
    assert all(line.endswith(":") for line in groups), "no members"
    assert all(account[4] in ("", "root", "nobody") for account in accounts.values()), "no full names"


def test_settings_for_all_users_are_copied_without_passwords(tmp_path: Path) -> None:
    for name, text in {
        "gitconfig": "[user]\n\tname = Ada\n[http]\n\textraheader = AUTHORIZATION: s3cret\n",
        "pip.conf": "[global]\nindex-url = https://ada:s3cret@mirror.corp/simple\n",
    }.items():
        (tmp_path / name).write_text(text)
        remove_passwords(str(tmp_path / name))
    assert "name = Ada" in (tmp_path / "gitconfig").read_text()
    assert (tmp_path / "pip.conf").read_text() == "[global]\nindex-url = https://mirror.corp/simple\n"
    assert "s3cret" not in "".join(path.read_text() for path in tmp_path.iterdir())
    (tmp_path / "pip.conf").write_bytes(b"\xff s3cret")
    remove_passwords(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["gitconfig"]


async def test_kernel_settings_cannot_be_written(make: Make) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    outcome = await make().run(
        "echo '|/tmp/x' > /proc/sys/kernel/core_pattern; echo b > /proc/sysrq-trigger; echo 1 > /proc/self/oom_score_adj;"
        "echo 1 > /proc/1/root/proc/sys/kernel/panic; mount -o remount,rw /proc; umount /proc"
    )
    assert outcome.exit_code != 0
    assert Path("/proc/sys/kernel/core_pattern").read_text() == pattern


async def test_the_sandbox_itself_cannot_be_filled(make: Make) -> None:
    """Only sized file systems can be written; the root and /dev, which have no size, cannot."""
    outcome = await make().run(
        "for d in / /dev /etc /run /var /usr /proc; do echo x > $d/x && echo wrote $d; done; true"
    )
    assert outcome.stdout == ""


@pytest.mark.parametrize(
    "path", ["/", "/usr", "/etc", "/proc", "/home", str(Path.home()), "/usr/local/lib", "/run/cantrip"]
)
def test_what_is_never_shown_or_written(path: str, workspace: Path) -> None:
    with pytest.raises(DefinitionError):
        Sandbox(SandboxOptions(bash_writable_paths=(path,)), workspace)
    if Path(path).is_dir():
        with pytest.raises(DefinitionError):
            Sandbox(SandboxOptions(), path)


def test_writable_paths_that_cannot_be(workspace: Path, tmp_path: Path) -> None:
    (workspace / "out").symlink_to(tmp_path)
    for path, words in (("out", "leads out"), (".git", "protected"), ("sub/.vscode/x", "protected")):
        (workspace / path).mkdir(parents=True, exist_ok=True)
        with pytest.raises(DefinitionError, match=words):
            Sandbox(SandboxOptions(bash_writable_paths=(path,)), workspace)
    (workspace / "file").write_text("")
    with pytest.raises(DefinitionError, match="not a folder"):
        Sandbox(SandboxOptions(bash_writable_paths=("file",)), workspace)


def test_an_empty_list_of_hosts_is_a_proxy_without_a_host(workspace: Path) -> None:
    made = Sandbox(SandboxOptions(bash_network=()), workspace)
    assert not made.policy().network
    assert made.policy().hosts == ()
    assert "HTTPS_PROXY" in dict(made.policy().environment)
    without = Sandbox(SandboxOptions(), workspace).policy()
    assert without.hosts is None
    assert not [name for name, _ in without.environment if "proxy" in name.lower()]


@pytest.mark.parametrize("bad", ["missing", "file", "unreadable"])
def test_a_workspace_that_cannot_be(bad: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    if bad == "unreadable":
        if os.getuid() == 0:
            pytest.skip("root can read every folder")
        (tmp_path / "unreadable").mkdir(mode=0o000)
    with pytest.raises(DefinitionError, match=bad if bad == "missing" else None):
        Sandbox(SandboxOptions(), tmp_path / bad)


async def test_credentials_in_gits_settings_are_not_shown(repository: Path, make: Make) -> None:
    """Continuous integration leaves a token there; git works without it."""
    config = repository / ".git/config"
    original = config.read_text()
    config.write_text(
        original
        + '[remote "origin"]\n\turl = https://ada:s3cret@example.org/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
        + '[http "https://example.org/"]\n\textraheader = AUTHORIZATION: basic s3cret\n[credential]\n\thelper = store s3cret\n'
    )
    for writable in (False, True):
        box = make(writable=writable)
        outcome = await box.run("cat .git/config; git status --short; git remote -v; grep -r s3cret .")
        assert "s3cret" not in outcome.stdout
        assert "https://example.org/x.git" in outcome.stdout
        assert " M notes.txt" in outcome.stdout
    config.write_text(original)
    assert "remote" not in (await box.run("cat .git/config")).stdout


@both_back_ends
async def test_a_secret_inside_a_protected_folder_is_hidden(workspace: Path, make: Make) -> None:
    (workspace / ".claude").mkdir()
    (workspace / ".claude/.env").write_text("s3cret")
    (workspace / ".claude/settings.json").write_text("{}")
    outcome = await make(writable=True).run("cat .claude/.env .claude/settings.json; echo x > .claude/settings.json")
    assert "s3cret" not in outcome.stdout
    assert outcome.stdout.endswith("{}")
    assert (workspace / ".claude/settings.json").read_text() == "{}"


async def test_a_kept_home_cannot_lead_mounts_astray(workspace: Path, tmp_path: Path) -> None:
    """What one command leaves there is where the next one's tools are mounted."""
    from cantrip_acp.sandbox.policy.host_toolchains import Host

    home = tmp_path / "home"
    (home / ".cargo/bin").mkdir(parents=True)
    (home / ".cargo/bin/tool").write_text("#!/bin/sh\necho tool\n")
    (home / ".cargo/bin/tool").chmod(0o755)
    kept = tmp_path / "kept"
    kept.mkdir()
    victim = tmp_path / "victim"
    victim.mkdir()
    found = Host.detect({"HOME": str(home), "PATH": f"{home}/.cargo/bin:/usr/bin:/bin"})
    box = Sandbox(SandboxOptions(), workspace, host=found, home_source=str(kept))
    for _ in range(2):
        outcome = await box.run(
            f"tool; cd ~; mv .cargo moved; rm -rf .cargo; ln -s /oldroot{victim} .cargo; ln -s /oldroot{victim} x; echo k > kept"
        )
        assert outcome.stdout == "tool\n", outcome.stderr
    assert list(victim.iterdir()) == []
    assert (kept / "kept").read_text() == "k\n"
    # Even where one got there somehow.
    shutil.rmtree(kept / ".cargo")
    (kept / ".cargo").symlink_to(victim)
    assert (await box.run("tool")).stdout == "tool\n"
    assert list(victim.iterdir()) == []


async def test_a_workspace_that_goes_away(workspace: Path, make: Make) -> None:
    box = make()
    workspace.rmdir()
    with pytest.raises(SandboxError, match="does not exist any more"):
        await box.run("true")


async def test_a_writable_folder_that_the_user_cannot_write(workspace: Path, make: Make) -> None:
    """Nothing can be made there, so nothing needs to stand there; commands run all the same."""
    (workspace / "sub").mkdir()
    workspace.chmod(0o555)
    try:
        outcome = await make(writable=True).run("echo x > sub/file && cat sub/file; mkdir .vscode")
    finally:
        workspace.chmod(0o755)
    assert outcome.stdout == "x\n"
    if os.getuid() != 0:
        assert outcome.exit_code != 0
    assert listing(workspace) == ["sub", "sub/file"]


@pytest.mark.parametrize("mode", [0o000, 0o300, 0o400])
async def test_a_folder_that_its_owner_shut_stays_hidden_when_a_command_opens_it(
    workspace: Path, make: Make, mode: int
) -> None:
    """A command could shut a folder, so that nobody finds the secrets in it, and the next one could open it again."""
    if os.geteuid() == 0:
        pytest.skip("root can read every folder")
    (workspace / "config").mkdir()
    (workspace / "config/.env").write_text("TOKEN=hidden-value\n")
    box = make(writable=True)
    await box.run("touch config/new")
    assert (await box.run(f"chmod {mode:o} config")).exit_code == 0
    for sandbox in (box, make(writable=True)):
        outcome = await sandbox.run("chmod 755 config; cat config/.env; cp -r config copy; cat copy/.env")
        assert "hidden-value" not in outcome.stdout
    (workspace / "config").chmod(0o755)
