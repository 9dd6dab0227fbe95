"""`cantrip cast`: cast a recipe once on an intent and show the result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cantrip_acp.cli.command_table import complete_recipe, examples
from cantrip_acp.cli.json_errors import CAST, JsonFlag
from cantrip_acp.cli.session.option_groups import Place, option_group
from cantrip_acp.cli.session.permissions import (
    allow_host_option,
    ask_option,
    named_hosts,
    permissions,
    print_allowed,
    require_terminal,
    with_answers,
)
from cantrip_acp.cli.session.setup import (
    ContextFiles,
    cache_option,
    context_option,
    cwd_option,
    loom_option,
    model_option,
    open_recipe,
    piped_input,
    read_context_files,
    state_option,
)
from cantrip_acp.types.errors import CantripError, IntentRequired

if TYPE_CHECKING:
    from cantrip_acp.cli.render.cast_output import CastJson, CastText
    from cantrip_acp.cli.session.loop_thread import CastEnding
    from cantrip_acp.cli.session.setup import OpenedRecipe
    from cantrip_acp.gates.web.named_hosts import NamedHosts


@click.command(
    "cast",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello."',
        "echo 'Say hello.' | cantrip cast greeter - --json",
        "seq 100 > notes.txt",
        'cantrip cast greeter "Say hello." --context notes.txt',
        "printf -- '- content: Hello.\\n' > hello.yaml",
        'cantrip cast "Say hello." --model scripted:hello.yaml',
    ),
)
@click.argument("recipe", required=False, metavar="[RECIPE]", shell_complete=complete_recipe)
@click.argument("intent", required=False, metavar="INTENT")
@model_option()
@click.option(
    "--json",
    "as_json",
    cls=JsonFlag,
    fields=CAST,
    is_flag=True,
    help="Print events as JSON lines; the last one is the result.",
)
@cwd_option
@loom_option
@context_option
@state_option
@cache_option
@click.option(
    "--reference",
    metavar="TEXT",
    help="The expected answer, for the recipe's scoring function and for exports. The model never sees it.",
)
@click.option("--full", is_flag=True, help="Show complete outputs and changes.")
@ask_option
@allow_host_option
@option_group("place", Place)
def cast(
    recipe: str | None,
    intent: str | None,
    model: str | None,
    as_json: bool,
    context_files: tuple[Path, ...],
    reference: str | None,
    full: bool,
    ask: bool,
    place: Place,
) -> int:
    """Run RECIPE once on INTENT and show what happens.

    RECIPE is a file or a name. A name is searched in .cantrip/ of the folder, then in your configuration folder, then among
    the built-in recipes. A file that you name here is trusted for this run. If INTENT is -, it is read from stdin.

    Without RECIPE the default agent works: `cantrip cast "fix the bug"`, or just `cantrip "fix the bug"`. What is piped into
    such a command is given to it: `git diff | cantrip "review this"`.

    The entity may do everything that the recipe allows. A line on stderr says what the recipe allows. With --ask you
    are asked first. The gate `fetch` sends requests only to hosts that INTENT, the recipe (bash_network) or
    --allow-host names.

    Ctrl-C cancels the cast. The loom keeps everything that happened until then.

    Exit status: 0 the cast terminated, 1 it was truncated or failed, 2 the command line, the recipe or a file is wrong,
    3 this machine has no sandbox, 130 interrupted.
    """
    if ask:
        require_terminal()
    if recipe is None:
        raise click.UsageError('say what to do: cantrip cast "fix the bug", or cantrip cast RECIPE "fix the bug"')
    if intent is None:
        recipe, intent = _of_one_word(recipe, place.cwd)
        if intent != "-" and Path("-") not in context_files and piped_input():
            context_files = (Path("-"), *context_files)
    words = sys.stdin.read() if intent == "-" else intent
    if not words.strip():
        raise IntentRequired("intent is required: say what the entity is to do (INTENT-1)")
    context, hosts = read_context_files(context_files), named_hosts(place.allow_hosts)
    opening = open_recipe(recipe, place.cwd, place.loom_file, place.state_dir, model)
    try:
        return run_opened(opening, words, context, hosts, as_json=as_json, full=full, ask=ask, reference=reference)
    finally:
        opening.loom.close()


def _of_one_word(text: str, cwd: Path) -> tuple[str, str]:
    """Split the single argument of a command into recipe and intent: the argument is the intent, for the default recipe.

    Raises click.UsageError if it may name a recipe, so that nothing is cast by mistake.
    """
    import shlex

    from cantrip_acp.cli.command_table import near_names
    from cantrip_acp.recipes import DEFAULT
    from cantrip_acp.recipes.recipe import is_path, names

    quoted = shlex.quote(text)
    as_intent = f"cantrip cast {DEFAULT} {quoted}"
    known = names(cwd.resolve())
    blank = any(character.isspace() for character in text)
    if text in known or (is_path(text) and Path(text).is_file()):
        raise click.UsageError(
            f'{text!r} is a recipe, so the intent is missing: cantrip cast {quoted} "what to do". If it is the intent, write: '
            f"{as_intent}"
        )
    if not blank and text != "-" and (near := near_names(text, known)):
        raise click.UsageError(
            f'unknown recipe {text!r}; did you mean {near[0]!r}? Then write: cantrip cast {near[0]} "what to do". If it is the '
            f"intent, write: {as_intent}"
        )
    if not blank and is_path(text):
        raise click.UsageError(f"there is no recipe file {text!r}. If it is the intent, write: {as_intent}")
    return DEFAULT, text


def run_opened(
    opening: OpenedRecipe,
    intent: str,
    context: ContextFiles,
    hosts: NamedHosts,
    *,
    as_json: bool = False,
    full: bool = False,
    ask: bool = False,
    reference: str | None = None,
) -> int:
    """Run an opened recipe once on an intent, show what happens, and return the exit status."""
    from cantrip_acp.cli.render.cast_output import CastJson, CastText
    from cantrip_acp.cli.render.terminal import Screen

    if as_json:
        return _run(opening, intent, context, hosts, CastJson(), ask, reference)
    screen = Screen()
    with screen.rendering():
        return _run(opening, intent, context, hosts, CastText(screen, opening.workspace, full=full), ask, reference)


def _run(
    opening: OpenedRecipe,
    intent: str,
    context: ContextFiles,
    hosts: NamedHosts,
    output: CastJson | CastText,
    ask: bool,
    reference: str | None,
) -> int:
    from cantrip_acp.cli.render.cast_output import CastJson
    from cantrip_acp.cli.session.loop_thread import run_entity

    screen = None
    if not isinstance(output, CastJson):
        output.show_intent(intent)
        screen = output.screen if output.screen.live is not None else None
    asked = permissions(hosts, opening.workspace, opening.state_dir, screen) if ask else hosts
    cantrip = context.to(opening.cantrip).for_session((), asked)
    if not isinstance(output, CastJson) and output.screen.terminal and sys.stdin.isatty():
        cantrip = with_answers(cantrip, output.screen)
    hosts.add_from_text(intent)
    print_allowed(cantrip, cantrip.circle, hosts, ask=ask)
    entity = cantrip.invoke(loom=opening.loom)
    opening.record_model(entity)
    try:
        with run_entity(entity) as run:
            ended = run.cast(intent, output, context.blocks, reference=reference)
    except CantripError as error:
        if isinstance(output, CastJson):
            output.show_error(str(error), entity_id=entity.id, usage=entity.usage, loom=opening.loom.location)
        else:
            output.renderer.end_turn()
            output.show_loom(opening.loom.location)
        raise
    return show_ending(ended, output)


def show_ending(ended: CastEnding, output: CastJson | CastText) -> int:
    """Show how a cast ended and return the exit status."""
    from cantrip_acp.cli.errors import DONE, FAILED, INTERRUPTED
    from cantrip_acp.cli.render.cast_output import CastText

    if isinstance(output, CastText):
        if ended.result is not None:
            output.show_result(ended.result)
        else:
            output.show_cancelled()
    if ended.stopped_by is not None and (ended.result is None or not ended.result.terminated):
        return INTERRUPTED
    return DONE if ended.result is not None and ended.result.terminated else FAILED
