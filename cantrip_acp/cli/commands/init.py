"""`cantrip init`: asks three questions and writes a recipe that runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from cantrip_acp.cli.command_table import examples
from cantrip_acp.cli.session.setup import project_option
from cantrip_acp.types.errors import DefinitionError, RecipeError

_MAY = {
    "read": "read the files here, and change nothing",
    "edit": "read and change the files here",
    "run": "read and change the files here, and run commands in the sandbox, without network",
}
_GATES = {
    "read": ("conversation", "[done, read_file, list_dir, search]", ""),
    "edit": ("conversation", "[done, read_file, list_dir, search, write_file, edit_file]", ""),
    "run": (
        "bash",
        "[done, read_file, list_dir, search, write_file, edit_file]",
        "    - bash_writable_paths: [workspace]   # what commands may write\n",
    ),
}
SCRIPTED = "scripted"
_TASK = "Help me with the files in this folder."


@dataclass(frozen=True)
class Answers:
    """The answers about the entity: its task, its crystal (``scripted`` for one that needs no key), and its permissions."""

    task: str
    model: str
    may: str


@click.command(
    "init",
    **examples(
        "cantrip init",
        'cantrip init reviewer --task "Review the files here." --model scripted --may read --yes',
        'cantrip cast reviewer "What is here?"',
    ),
)
@click.argument("name", required=False, default="helper")
@click.option("--task", metavar="TEXT", help="The first answer: what the entity is for.")
@click.option("--model", metavar="PROVIDER:MODEL", help="The second answer: the model, or `scripted` for none.")
@click.option("--may", type=click.Choice(tuple(_MAY)), help="The third answer: what the entity may do.")
@click.option("--yes", is_flag=True, help="Ask nothing: use the suggested answers for options that are not given.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@project_option
def init(name: str, task: str | None, model: str | None, may: str | None, yes: bool, force: bool, cwd: Path) -> None:
    """Ask three questions, and write a recipe that runs: .cantrip/NAME.cantrip.yaml (NAME is `helper` by default).

    The questions are: what the entity is for, which model it uses, and what it may do. Only models that can be used on this
    machine are suggested. Without a terminal, or with --yes, the suggested answers are used.
    """
    from cantrip_acp.crystals.embedded import weights
    from cantrip_acp.loom.output_file import output_file
    from cantrip_acp.recipes.parse import validation
    from cantrip_acp.recipes.parse.document import parse

    if name.startswith((".", "-")) or os.sep in name:
        raise click.UsageError(f"the name of a recipe begins with a letter or a digit and has no slash: {name!r}")
    path = cwd / ".cantrip" / f"{name}.cantrip.yaml"
    if os.path.lexists(path) and not force:
        raise DefinitionError("exists already; choose another name, or use --force to replace it", where=str(path))
    asks = sys.stdin.isatty() and not yes
    models = usable_models()
    answers = Answers(
        task or (_ask("What is the entity for?", _TASK) if asks else _TASK),
        model or (_choose("Which model?", models) if asks else models[0][0]),
        may or (_choose("What may it do?", list(_MAY.items())) if asks else "read"),
    )
    text = recipe_text(name, answers).encode()
    # A wrong model is an error now, not at the first cast. The file is not written yet, so the error does not name it.
    try:
        validation.recipe(parse(text, path))
    except RecipeError as error:
        wrong = error.problems[0]
        is_model = wrong.key.startswith("crystal")
        raise DefinitionError(wrong.message, where=f"--model {answers.model}" if is_model else wrong.key) from None
    provider, _, model = answers.model.partition(":")
    if provider == "embedded" and model and model not in weights.KNOWN:
        raise DefinitionError(weights.unknown(model), where=f"--model {answers.model}")
    with output_file(path, overwrite=force, make_folder=True) as file:
        file.write(text)
    click.echo(f"wrote {path}")
    if answers.model == SCRIPTED:
        click.echo(
            "It uses a script in the place of a model, so it runs without a key. The file says how to change that."
        )
    click.echo(f'try it: cantrip cast {name} "What is here?"')
    click.echo(f"talk:   cantrip repl {name}")


def usable_models() -> list[tuple[str, str]]:
    """The usable crystals on this machine, best first, with a description. The last one needs nothing."""
    from cantrip_acp.crystals import keys
    from cantrip_acp.crystals.catalog.lookup import default
    from cantrip_acp.crystals.embedded import weights
    from cantrip_acp.recipes.build.crystal_factory import KEYS

    found = []
    if chosen := keys.setting("CANTRIP_CRYSTAL"):
        found.append((chosen, "$CANTRIP_CRYSTAL"))
    for provider, names in KEYS.items():
        if (key := keys.find(names)) is not None and (name := default(provider)) is not None:
            found.append((f"{provider}:{name}", f"{key.name} is set"))
    if weights.KNOWN[weights.DEFAULT].pulled:
        found.append(("embedded", "a very small model on this machine, for tries"))
    return [*found, (SCRIPTED, "no model: a script answers, to try the recipe without a key")]


def _ask(question: str, default: str) -> str:
    click.echo(f"\n{question}")
    return str(click.prompt("", default=default, prompt_suffix="> "))


def _choose(question: str, choices: Sequence[tuple[str, str]]) -> str:
    """Ask for one of the choices by its number or name; any other text that names a model is taken as it is."""
    click.echo(f"\n{question}")
    for number, (value, about) in enumerate(choices, 1):
        click.echo(f"  {number}  {value}  ({about})")
    values = [value for value, _ in choices]
    while True:
        answer = str(click.prompt("", default="1", prompt_suffix="> ")).strip()
        if answer.isdecimal() and 1 <= int(answer) <= len(values):
            return values[int(answer) - 1]
        if answer in values or (":" in answer and SCRIPTED in values):
            return answer
        click.echo(f"type a number from 1 to {len(values)}" + (", or PROVIDER:MODEL" if SCRIPTED in values else ""))


def recipe_text(name: str, answers: Answers) -> str:
    """The recipe for the answers, with comments."""
    from cantrip_acp.recipes.parse import names

    medium, gates, ward = _GATES[answers.may]
    crystal = (
        """\
# A script plays the role of the model. For a real one, replace these lines by, for example:
#   crystal: anthropic:claude-sonnet-5-5
crystal:
  provider: scripted
  responses:
    - {content: I look at the folder., tool_calls: [{gate: list_dir}]}
    - {content: These are the files here. A real model would now do what you asked., repeat: true}
"""
        if answers.model == SCRIPTED
        else f"crystal: {json.dumps(answers.model)}\n"
    )
    embedded = answers.model.partition(":")[0] in names.EMBEDDED
    limit = "  max_tokens: 200   # a very small model may repeat itself until this limit\n" if embedded else ""
    purpose = json.dumps(answers.task, ensure_ascii=False)
    return f"""\
# Written by cantrip init. `cantrip recipe check {name}` checks this file. `cantrip gates` and `cantrip wards` list what it
# can name.
name: {json.dumps(name)}
description: {purpose}
{crystal}
# What the entity is told.
call:
  system_prompt: {purpose}
{limit}
# What it has and what limits it: {_MAY[answers.may]}.
circle:
  medium: {medium}
  gates: {gates}
  wards:
    - max_turns: 30   # queries of one cast
{ward}"""
