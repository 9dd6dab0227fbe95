"""Yools that are commands: what reaches the shell, what the sandbox shows, and which results are used again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.reuse.step_results import Reuse
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, new_tuple
from cantrip_acp.tuplespace.workers.worker import Ended, Worker
from cantrip_acp.tuplespace.yools.command_yool import Command, CommandYool, Template
from cantrip_acp.tuplespace.yools.step import StepCall, StepResult

pytestmark = pytest.mark.anyio
NAME = "agent.lint.try.v1"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


@pytest.fixture
def make(project: Path, tmp_path: Path) -> Callable[..., CommandYool]:
    def of(run: str, **options: Any) -> CommandYool:
        return CommandYool(Command(run=run, **options), project, tmp_path / "state", full_name=NAME)

    return of


def call(**args: Any) -> StepCall:
    return StepCall(
        yool=NAME, args=args, tuple_id="sha256:0", position={}, left_usd=None, left_tokens=None, left_s=None
    )


async def said(yool: CommandYool, **args: Any) -> str:
    result = await yool(call(**args))
    assert result.exit == 0, result
    text: str = result.result["stdout"]
    return text


HOSTILE = [
    "a b",
    "; touch pwned #",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "$(touch pwned)",
    "`touch pwned`",
    "${PATH}",
    "a\nb; touch pwned",
    "*",
    "~",
    "\\",
    "'",
    "",
    "é 日本",
    "{other}",
    "!!",
    "&& touch pwned",
]


@pytest.mark.parametrize("value", HOSTILE)
async def test_a_value_is_one_word_whatever_it_says(
    make: Callable[..., CommandYool], project: Path, value: str
) -> None:
    yool = make("printf '<%s>' {path} --out={path}; sh -c 'printf \"[%s]\" \"$1\"' - {path}")
    assert await said(yool, path=value) == f"<{value}><--out={value}>[{value}]"
    assert [*project.iterdir()] == []


async def test_a_list_is_one_word_for_each_value(make: Callable[..., CommandYool]) -> None:
    yool = make("printf '<%s>' start {paths}")
    assert await said(yool, paths=["a b", "c;d", "*", 3, True]) == "<start><a b><c;d><*><3><true>"
    assert await said(yool, paths=[]) == "<start>"


async def test_a_value_that_looks_like_an_option_needs_two_dashes_before_it(make: Callable[..., CommandYool]) -> None:
    refused = await make("ls {path}")(call(path="--help"))
    assert refused.exit == 64
    assert refused.error is not None
    assert "write -- before {path}" in refused.error
    assert (await make("ls a; ls -- b; ls {path}")(call(path="-l"))).exit == 64
    assert (await make("ls {paths}")(call(paths=["a", "-l"]))).exit == 64
    for text in (
        "ls {empty}{path}",
        'ls ""{path}',
        "ls $NONE${NONE}{path}",
        "ls 'a -- ' {path}",
        "echo `ls {path}`",
        "ls \\\n{path}",
    ):
        assert (await make(text)(call(path="-l", **({"empty": ""} if "{empty}" in text else {})))).exit == 64, text
    assert await said(make("printf '<%s>' a{path} \\\\{path} 'b'{path}"), path="-n") == "<a-n><\\-n><b-n>"
    assert await said(make("printf -- '<%s>' {path}"), path="-n") == "<-n>"
    assert await said(make("printf '<%s>' --path={path}"), path="-n") == "<--path=-n>"


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "have no path"),
        ({"path": None}, "have no path"),
        ({"path": "a", "more": 1}, "have more, which the command does not take; it takes path"),
        ({"path": {"a": 1}}, "must be a text, a number or a list"),
        ({"path": [["a"]]}, "must be a text, a number or a list"),
        ({"path": "x" * 100_001}, "at most 100,000"),
        ({"path": "\ud800"}, "not valid Unicode"),
    ],
)
async def test_wrong_arguments_are_told_and_nothing_runs(
    make: Callable[..., CommandYool], project: Path, args: dict[str, Any], why: str
) -> None:
    result = await make("touch ran; echo {path}")(call(**args))
    assert result.exit == 64
    assert result.error is not None
    assert why in result.error
    assert [*project.iterdir()] == []


@pytest.mark.parametrize("text", ["echo '{path}'", 'echo "in {path}"', "echo 'a", "", "echo {project}"])
def test_a_command_that_cannot_be_filled_safely_is_refused(text: str) -> None:
    with pytest.raises(TupleError):
        Template(text)


@pytest.mark.parametrize(
    "text",
    [
        "echo $(( {n} + 1 ))",
        "echo $(echo $(echo a)) $(( ( 2 * 1 ) + {n} ))",
        "(( {n} > 1 ))",
        "echo $[ {n}]",
        "echo $[{n}]",
        "[[ {n} -eq 1 ]]",
        "a[{n}]=1",
        "x=abc; echo ${x:{n}}",
        "if true; then let {n}; fi",
        "test -v {n}",
        "[ -v {n} ]",
        "printf -v {n} a",
        "true; declare {n}=1",
        "eval {n}",
    ],
)
def test_a_value_stands_nowhere_where_the_shell_would_compute_with_it(text: str) -> None:
    with pytest.raises(TupleError, match="the shell computes with"):
        Template(text)


async def test_what_only_looks_as_if_the_shell_would_compute_is_allowed(make: Callable[..., CommandYool]) -> None:
    text = (
        "x=$(( 1 + 1 )); if [[ -n a ]]; then printf '<%s>' '((' $(expr {n} + $x) $(printf %s {n}); fi; "
        "[ {n} -eq 3 ] && grep -v {n} /dev/null; true"
    )
    assert await said(make(text), n=3) == "<((><5><3>"


async def test_braces_of_the_shell_stay(make: Callable[..., CommandYool]) -> None:
    assert await said(make("x=1; echo ${x} {{path}} '{{a}}' $(echo 'a b' | awk '{{print $2}}')")) == "1 {path} {a} b\n"


async def test_only_declared_variables_reach_the_command(
    make: Callable[..., CommandYool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARGET", "a b")
    monkeypatch.setenv("OTHER", "not this")
    monkeypatch.setenv("DEPLOY_TOKEN", "quite-secret-0123456789")
    text = await said(make("env; cat /proc/*/environ | tr '\\0' '\\n'", env=("TARGET",)))
    assert "TARGET=a b\n" in text
    assert "not this" not in text
    assert "quite-secret" not in text
    with pytest.raises(TupleError, match="no secret enters a sandbox"):
        make("env", env=("DEPLOY_TOKEN",))


async def test_a_declared_variable_with_a_known_secret_is_refused(
    make: Callable[..., CommandYool], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cantrip_acp.text.redaction import shared

    shared().add("secret-value-0123456789")
    monkeypatch.setenv("TARGET", "x secret-value-0123456789")
    result = await make("env", env=("TARGET",))(call())
    assert result.exit == 64
    assert result.error is not None
    assert "TARGET is a secret" in result.error
    assert "0123456789" not in result.error


async def test_the_command_writes_in_the_project_alone(
    make: Callable[..., CommandYool], project: Path, tmp_path: Path
) -> None:
    (project / ".git").mkdir()
    (project / ".git" / "config").write_text("[core]\n")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "key").write_text("the key")
    beside = tmp_path / "beside"
    beside.write_text("as it was")
    result = await make(
        f"echo new > made; echo bad > {beside}; ln -s {beside} link; echo bad > link; echo bad > ../more;"
        f" echo bad > .git/config; cat {tmp_path}/state/key; touch /etc/more $HOME/x; true"
    )(call())
    assert (project / "made").read_text() == "new\n"
    assert beside.read_text() == "as it was"
    assert not (tmp_path / "more").exists()
    assert (project / ".git" / "config").read_text() == "[core]\n"
    assert "the key" not in result.result["stdout"]


async def test_there_is_no_network(make: Callable[..., CommandYool]) -> None:
    result = await make("exec 3<>/dev/tcp/127.0.0.1/80 || (: </dev/tcp/1.1.1.1/80)")(call())
    assert result.exit != 0


async def test_a_failure_has_the_status_and_the_last_lines_without_secrets(make: Callable[..., CommandYool]) -> None:
    key = "sk-ant-api03-" + "a1B2" * 20
    result = await make(f"seq 100; echo '{key}'; echo 'src/a.py:1: unused import' >&2; exit 3")(call())
    assert result.exit == 3
    assert result.error == "exit status 3: src/a.py:1: unused import"
    assert key not in str(result.result)
    only = await make("seq 100; exit 1")(call())
    assert only.error == "exit status 1: 96\n97\n98\n99\n100"
    large = await make("head -c 3000000 /dev/zero | tr '\\0' x; exit 1")(call())
    assert large.result["truncated"]
    assert len(large.result["stdout"]) < 300_000
    assert large.error is not None
    assert len(large.error) < 600


async def test_what_a_command_writes_is_limited(make: Callable[..., CommandYool], project: Path) -> None:
    limited = StepCall(
        yool=NAME, args={}, tuple_id="sha256:0", position={}, left_usd=None, left_tokens=None, left_s=None, disk_mb=5
    )
    result = await make("dd if=/dev/urandom of=big bs=1M count=60 conv=fsync; sleep 600")(limited)
    assert result.exit == 75
    assert result.error is not None
    assert "disk_quota_mb" in result.error


async def test_a_cancel_ends_the_command(make: Callable[..., CommandYool], project: Path) -> None:
    """The command would write for ever."""
    results: list[StepResult] = []
    log = project / "log"

    async def run() -> None:
        results.append(await make("touch log; while :; do echo x >> log; sleep 0.01; done")(call()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        while not (log.exists() and log.stat().st_size):
            await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    size = log.stat().st_size
    assert results == []
    for _ in range(5):
        await anyio.sleep(0.02)
        assert log.stat().st_size == size


async def work_off(store: TupleStore, yool: CommandYool, number: int, **args: Any) -> Ended:
    ended: list[Ended] = []
    store.put([new_tuple("build", [{"yool": "agent.lint.try", "args": args}], map_pos={"n": number})])
    worker = Worker(
        store,
        Pattern({"lane": "build"}),
        {"agent.lint.try": yool, NAME: yool},
        name="w",
        ended=ended.append,
        reuse=Reuse(project="p"),
    )
    await worker.run(until=lambda: bool(ended))
    return ended[0]


async def test_a_result_is_used_again_until_a_declared_input_changes(
    make: Callable[..., CommandYool], project: Path, store: TupleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src").mkdir()
    (project / "src" / "a.py").write_text("x = 1\n")
    (project / "notes").write_text("x")
    monkeypatch.setenv("TARGET", "one")
    lint = make("cat {path}; echo run >> log", inputs=("src/**",), env=("TARGET",))
    first = await work_off(store, lint, 1, path="src/a.py")
    assert (first.reused, (first.receipt or {})["yool"]) == (0, NAME)
    assert (first.receipt or {})["result"] == {"exit_code": 0, "stdout": "x = 1\n", "stderr": ""}
    (project / "notes").write_text("y")
    again = await work_off(store, lint, 2, path="src/a.py")
    assert again.reused == 1
    assert (again.receipt or {})["result"]["stdout"] == "x = 1\n"
    (project / "src" / "a.py").write_text("x = 2\n")
    assert (await work_off(store, lint, 3, path="src/a.py")).reused == 0
    assert (await work_off(store, lint, 4, path="src/a.py")).reused == 1
    monkeypatch.setenv("TARGET", "two")
    assert (await work_off(store, lint, 5, path="src/a.py")).reused == 0
    other = make("cat  {path}; echo run >> log", inputs=("src/**",), env=("TARGET",))
    assert (await work_off(store, other, 6, path="src/a.py")).reused == 0
    assert (project / "log").read_text() == "run\n" * 4


async def test_a_command_without_declared_inputs_always_runs(
    make: Callable[..., CommandYool], store: TupleStore
) -> None:
    yool = make("date")
    assert (await work_off(store, yool, 1)).reused == 0
    assert (await work_off(store, yool, 2)).reused == 0


@pytest.mark.parametrize("inputs", ["src/**", "src/*.txt", "**/*.txt"])
async def test_what_a_link_leads_to_is_no_declared_input(project: Path, tmp_path: Path, inputs: str) -> None:
    (project / "src").mkdir()
    (project / "src" / "a.txt").write_text("1")
    yool = CommandYool(Command(run="cat src/*", inputs=(inputs,)), project, tmp_path / "state", full_name="agent.cat.x")
    first = await yool.input_digest(call())
    assert first is not None
    # A link to another input is as good as that.
    (project / "src" / "b.txt").symlink_to("a.txt")
    assert await yool.input_digest(call()) not in (None, first)
    (project / "other").write_text("2")
    (project / "src" / "b.txt").unlink()
    (project / "src" / "b.txt").symlink_to("../other")
    assert await yool.input_digest(call()) is None
    (project / "src" / "b.txt").unlink()
    assert await yool.input_digest(call()) == first
    (project / "src").rename(project / "moved")
    (project / "src").symlink_to("moved")
    assert await yool.input_digest(call()) is None
