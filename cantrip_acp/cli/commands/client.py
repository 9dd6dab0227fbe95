"""`cantrip client`: a headless ACP client in the terminal, for any ACP agent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cantrip_acp.cli.command_table import examples
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.cli.session.permissions import Policy
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.acp.client.client import ListedSession
    from cantrip_acp.cli.render.client_output import ClientOutput
    from cantrip_acp.cli.session.input_line import InputLine


@click.command(
    epilog=examples(
        "cantrip client -- cantrip-acp",
        'cantrip client --prompt "What does this project do?" -- cantrip-acp',
        'cantrip client --json --allow once --allow edit=never --prompt "Run the tests" -- cantrip-acp --recipe coding',
        "cantrip client --list -- cantrip-acp",
        'cantrip client --load last --prompt "Where were we?" -- cantrip-acp',
        "printf 'steps: [{prompt: Hello, expect: {stop_reason: end_turn}}]' > smoke.yaml",
        "cantrip client --script smoke.yaml -- cantrip-acp",
    )["epilog"]
)
@click.argument("agent", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- AGENT-COMMAND")
@click.option(
    "--cwd",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="The session's folder. The agent may read and write its files through the client.  [default: here]",
)
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    metavar="TEXT",
    help="A prompt (may be repeated; - reads one from stdin). Without this option, each line of stdin is a prompt.",
)
@click.option(
    "--allow",
    "rules",
    multiple=True,
    metavar="[KIND=]RULE",
    help="The answer to permission requests: ask, once, always or never. KIND=RULE is for one kind of tool call (read, edit, "
    "execute, …). May be repeated. Without a terminal, ask means no.  [default: ask]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="The maximum seconds for one answer of the agent.",
)
@click.option("--mode", metavar="ID", help="The id of the session mode to set.")
@click.option("--set", "options", multiple=True, metavar="ID=VALUE", help="A config option to set (may be repeated).")
@click.option("--auth", metavar="ID", help="The id of the agent's sign-in method to use.")
@click.option(
    "--load",
    metavar="ID",
    help="Open an earlier session and show its history; `last` is the newest session of the folder.",
)
@click.option("--resume", metavar="ID", help="Open an earlier session without showing its history.")
@click.option("--list", "listing", is_flag=True, help="List the agent's sessions of the folder, and do nothing else.")
@click.option("--all", "everywhere", is_flag=True, help="With --list: list the sessions of all folders.")
@click.option(
    "--script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Send the prompts of a script and check what it expects (docs/client.md).",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print each update as a line of JSON, and a result line for each prompt."
)
@click.option("--full", is_flag=True, help="Show complete outputs and changes.")
@click.option("-v", "--verbose", is_flag=True, help="Show the agent's stderr as it comes.")
def client(
    agent: tuple[str, ...],
    folder: Path,
    prompts: tuple[str, ...],
    rules: tuple[str, ...],
    timeout: float | None,
    mode: str | None,
    options: tuple[str, ...],
    auth: str | None,
    load: str | None,
    resume: str | None,
    listing: bool,
    everywhere: bool,
    script: Path | None,
    as_json: bool,
    full: bool,
    verbose: bool,
) -> int:
    """Talk to an ACP agent in the terminal.

    Shows the agent's messages and thoughts, its tool calls with their output and changes, its usage, and why it stopped.
    On a terminal it is `cantrip repl` with another agent: the same input line, slash commands (/help lists them), queue and
    keys. Ctrl-C cancels the running turn, a second Ctrl-C quits, and Ctrl-D quits.

    Exit status: 0 every turn ended with end_turn, or the script's expectations were met; 1 a turn was interrupted,
    refused or failed, or an expectation was not met; 2 the command line or the script is wrong, or the agent cannot
    be started; 130 interrupted.
    """
    try:
        policy = Policy.of(rules)
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint="--allow") from None
    if wrong := next((each for each in options if "=" not in each), None):
        raise click.BadParameter(f"{wrong!r} is not ID=VALUE", param_hint="--set")
    if everywhere and not listing:
        raise click.UsageError("--all needs --list")
    if load and resume:
        raise click.UsageError(
            "--load and --resume cannot be used together: --load shows the history, --resume does not"
        )
    if script is not None:
        if prompts or load or resume or listing or mode or options:
            raise click.UsageError(
                "--script opens its own session; leave --prompt, --load, --resume, --list, --mode and --set out"
            )
        from cantrip_acp.cli.commands.client_script import run_script

        return run_script(
            script, agent, folder=folder.resolve(), policy=policy, auth=auth, as_json=as_json, verbose=verbose
        )
    from cantrip_acp.cli.session.conversation import at_terminal

    folder = folder.resolve()

    def talk(screen: Screen, line: InputLine | None) -> int:
        from cantrip_acp.acp.client.client import AgentError, AgentMissing
        from cantrip_acp.cli.render.client_output import ClientJson, ClientText
        from cantrip_acp.cli.session.client_session import ClientSession, Quit
        from cantrip_acp.cli.session.conversation import Conversation, questions_at

        rendering = nullcontext() if as_json or line is not None else screen.rendering()
        with rendering:
            # After that, because what goes to stderr must not be in the midst of a message that may still change.
            output: ClientOutput = (
                ClientJson()
                if as_json
                else ClientText(screen, Screen(sys.stderr), folder=folder, full=full, verbose=verbose)
            )
            questions = questions_at(screen, line) if sys.stdin.isatty() and not as_json else None
            session = ClientSession(agent, output, folder=folder, policy=policy, questions=questions, timeout=timeout)
            try:
                with session:
                    conversation = Conversation(session, output, line, prompts=prompts)
                    with conversation.working():
                        if listing:
                            session.initialize(auth)
                            _list(session.sessions(everywhere=everywhere), screen, as_json)
                            return 0
                        chosen = dict(each.split("=", 1) for each in options)
                        session.open(mode=mode, auth=auth, load=load, resume=resume, options=chosen)
                    if conversation.person:
                        screen.line((conversation.hint, "dim"))
                    return conversation.run()
            except Quit as quit_:
                return quit_.status
            except KeyboardInterrupt:
                return 130
            except (AgentError, AgentMissing) as error:
                output.show_error(error)
                return 2 if isinstance(error, AgentMissing) else 1

    return talk(Screen(), None) if as_json or prompts or listing else at_terminal(None, folder, talk)


def _list(found: Sequence[ListedSession], screen: Screen, as_json: bool) -> None:
    """Print the sessions, newest first."""
    import json

    for each in sorted(found, key=lambda session: session.updated_at, reverse=True):
        if as_json:
            about = {"id": each.id, "cwd": each.folder, "title": each.title, "updated_at": each.updated_at}
            print(json.dumps({"event": "listed", **about}))
            continue
        screen.line((clean_line(each.id, 100), "bold"), ("  " + clean_line(each.updated_at, 40), "dim"), whole=True)
        screen.line(clean_line(each.title, 200) or "(no title)", indent=2, whole=True)
        screen.line((clean_line(each.folder), "dim"), indent=2, whole=True)
    if not found and not as_json:
        screen.line(("no sessions", "dim"))
