"""The errors of the core, in one tree. Other parts (the substrate, the tuple-space, clients, MCP, training …) derive their own
from `CantripError`, or from the class here that says what failed.

    CantripError
    ├── DefinitionError            a cantrip, recipe, gate or ward that is not valid (CANTRIP-1, CANTRIP-3)
    │   ├── Immutable              code tried to change a call, a circle or a cantrip (CALL-1)
    │   ├── RecipeError            a recipe file that is not valid; lists every problem
    │   ├── MissingVariable        a recipe names an environment variable that is not set
    │   ├── UntrustedRecipe        a workspace's recipe asks for what only a trusted one may have
    │   └── MissingKey             no crystal is available: no provider key and no script
    ├── IntentRequired             a cast without an intent (INTENT-1)
    ├── CrystalError               a query that failed (status, retryable, retry_after)
    │   ├── ContextLimitError      the messages do not fit the crystal's window (CRYSTAL-2)
    │   ├── ScriptExhausted        a scripted crystal has no response left for a query
    │   └── MalformedResponse      a response that breaks the contract (CRYSTAL-3, CRYSTAL-4, CRYSTAL-5)
    ├── VerdictError               a verifier that gave no verdict on a thread
    ├── NoResult                   a cast with a result_type that ended without a valid result
    ├── GateError                  an expected failure of a gate; its text is what the entity sees (CIRCLE-5)
    │   └── ChildRefused           a child that its parent's circle does not allow (COMP-1)
    ├── EntityError
    │   ├── EntityBusy             a second cast while one runs
    │   ├── EntityIdle             a message for a running cast while none runs
    │   ├── EntityExists           an entity with that id exists already
    │   └── EntityClosed           a cast on an entity that has ended
    ├── SandboxError               a sandbox that failed
    │   └── SandboxMissing         this machine cannot run a sandbox, so the medium does not run
    ├── GitError                   git, or a repository, cannot do what was asked
    ├── CheckpointError            the files of a turn cannot be kept, or cannot be restored
    ├── OutputError                a file that a user named was not written, or must not be
    └── LoomError                  a loom that cannot be read or written
        ├── LoomLocked             another process writes this loom
        ├── LoomAppendOnly         code tried to change or delete what was written (LOOM-3)
        ├── LoomWriteError         the record did not reach the disk
        ├── LoomChanged            the file that a reader follows is not the one it opened
        └── TurnNotFound           no turn has that id

Messages are for the person who must act: what happened, where, what to do. They never contain a secret.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


class CantripError(Exception):
    """Base class of all errors that this package raises on purpose."""


class DefinitionError(CantripError):
    """A definition that is not valid.

    ``where`` names the place: ``file:line:column`` for recipes, a dotted key for values, or None.
    ``rule`` is the id of the broken rule: one of the specification (``CIRCLE-1``) or of
    `cantrip_acp/lsp/recipes/rules.md` (``unknown-key``).
    ``place`` is the line and the column in a file. ``reason`` is the message without the place, for callers that show
    the place themselves.
    """

    def __init__(
        self, message: str, *, where: str | None = None, rule: str = "schema", place: tuple[int, int] | None = None
    ) -> None:
        self.where = where
        self.rule = rule
        self.place = place
        self.reason = message
        super().__init__(f"{where}: {message}" if where else message)


class Immutable(DefinitionError, AttributeError):
    """Code tried to change a call, a circle or a cantrip (CALL-1). ``replace`` makes a changed copy."""

    def __init__(self, message: str) -> None:
        super().__init__(message, rule="CALL-1")


class RecipeError(DefinitionError):
    """A recipe file that is not valid.

    ``places`` has one line ``file:line:column: message`` for each problem, in order. ``problems`` has the same as
    data (`recipes.parse.problem_positions.Problem`), each with its rule, if they are known.
    """

    def __init__(self, places: Sequence[str] = (), *, problems: Sequence[Any] = ()) -> None:
        self.problems = tuple(problems)
        self.places = tuple(places) or tuple(map(str, problems))
        super().__init__("\n".join(self.places), rule=self.problems[0].rule if self.problems else "schema")


class MissingVariable(RecipeError):
    """A recipe names an environment variable that is not set. The recipe itself may be right."""


class UntrustedRecipe(RecipeError):
    """A recipe that came with a workspace asks for what only a trusted one may have.

    ``folder`` is the folder to trust. ``how`` replaces the advice to use the command line.
    """

    def __init__(self, places: list[str], *, folder: str, how: str | None = None) -> None:
        self.folder = folder
        how = how or f"{folder}: to allow this, read its .cantrip folder and run: cantrip trust {folder}"
        super().__init__([*places, how])


class MissingKey(DefinitionError):
    """No crystal is available: no recipe, environment variable or key names one."""


class IntentRequired(CantripError):
    """A cast needs an intent (INTENT-1)."""


class CrystalError(CantripError):
    """A query that failed.

    ``status`` is the HTTP status, if there was one. ``retryable`` says whether another attempt may help. By default
    this holds for 429 and 5xx (PROD-2) and never without a status; a crystal that knows better sets it (for example
    after a connection reset).
    ``retry_after`` is in seconds. ``answer`` is the crystal's `Response`, if it gave one that cannot be used (an empty one,
    one that was cut before it began, one without the call that it must have): the loom keeps it, because it was sampled.
    ``asked_again`` is the message after which the crystal answers again within the same query. ``part`` is the part of the
    request that the error names, if it names one, and ``about_media`` says that it is about an image, a sound or a document.
    ``unreachable`` says that no answer came from the provider at all.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.status = status
        self.retry_after = retry_after
        self._retryable = retryable
        self.answer: Any = None
        self.asked_again: str | None = None
        self.part: Any = None
        self.about_media = False
        self.unreachable = False
        super().__init__(message)

    @property
    def refuses_content(self) -> bool:
        """Whether the provider rejects the content of the request, now or later."""
        return self.about_media or self.status in (400, 413, 415, 422)

    def with_answer(self, answer: Any, asked_again: str | None = None) -> Self:
        """This error, with the rejected answer."""
        self.answer, self.asked_again = answer, asked_again
        return self

    def may_retry(self, statuses: frozenset[int] | None = None) -> bool:
        """Whether to try again. ``statuses`` replaces the default set of retryable statuses."""
        if self._retryable is not None:
            return self._retryable
        if self.status is None:
            return False
        if statuses is not None:
            return self.status in statuses
        return self.status == 429 or 500 <= self.status <= 599


class ContextLimitError(CrystalError):
    """The messages do not fit the crystal's window. Nothing was cut off silently (CRYSTAL-2)."""

    def __init__(self, message: str, *, tokens: int | None = None, limit: int | None = None) -> None:
        self.tokens = tokens
        self.limit = limit
        super().__init__(message, retryable=False)

    @property
    def refuses_content(self) -> bool:
        return True


class ScriptExhausted(CrystalError):
    """A scripted crystal got a query after its last response."""


class MalformedResponse(CrystalError):
    """A response that breaks the crystal contract (CRYSTAL-3, CRYSTAL-4, CRYSTAL-5)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class VerdictError(CantripError):
    """A verifier's cast ended without a verdict, or with one outside the allowed range. The thread got no reward."""


class NoResult(CantripError):
    """A cast with a ``result_type`` ended without a result of that type.

    ``cast`` is the `CastResult` with reason, summary and usage.
    """

    def __init__(self, message: str, *, cast: Any) -> None:
        super().__init__(message)
        self.cast = cast


class GateError(CantripError):
    """An expected failure of a gate. Its text is the observation that the entity sees (CIRCLE-5).

    ``advice`` says what the entity should do now; it is the end of that text. Users see only ``what``.

    >>> error = GateError("the pattern is empty", "give a regular expression")
    >>> str(error), error.what
    ('the pattern is empty; give a regular expression', 'the pattern is empty')
    """

    def __init__(self, what: str, advice: str = "") -> None:
        self.what = what
        super().__init__(f"{what}{'. ' if advice[0].isupper() else '; '}{advice}" if advice else what)


class ChildRefused(GateError):
    """A child that its parent's circle does not allow.

    ``ward`` names what refused it: a ward, or gate, medium, crystal, circle, call. ``index`` is its place in a batch.
    """

    def __init__(self, ward: str, message: str, index: int | None = None) -> None:
        self.ward = ward
        self.index = index
        super().__init__(message)


class EntityError(CantripError):
    """An entity that cannot do what was asked."""


class EntityBusy(EntityError):
    """The entity is running a cast. It runs one at a time."""


class EntityIdle(EntityError):
    """The entity runs no cast, so there is nothing that a message could steer."""


class EntityExists(EntityError):
    """An entity with that id is in the loom already, or is live. Ids are unique (ENTITY-6)."""


class EntityClosed(EntityError):
    """The entity has ended; invoke the cantrip again."""


class SandboxError(CantripError):
    """A sandbox failed. Nothing ran outside of it."""


class SandboxMissing(SandboxError):
    """This machine cannot run a sandbox, so the medium does not run. ``mend`` says what to do."""

    def __init__(self, message: str, *, mend: str | None = None) -> None:
        self.mend = mend
        super().__init__(f"{message} {mend}" if mend else message)


class GitError(CantripError):
    """git, or a repository, cannot do what was asked. The text says which and why."""


class CheckpointError(CantripError):
    """The files of a turn cannot be kept, or cannot be restored. The text says which and why."""


class OutputError(CantripError):
    """A file that a user named cannot be written, or must not be replaced (a loom, a link to a device, a folder)."""


class LoomError(CantripError):
    """A loom that cannot be read or written."""


class LoomDamaged(LoomError):
    """One record cannot be read; other records can."""


class LoomLocked(LoomError):
    """Another process writes this loom. A loom has one writer at a time."""


class LoomAppendOnly(LoomError):
    """The loom is append-only (LOOM-3)."""


class LoomWriteError(LoomError):
    """A record did not reach the store. Earlier records are complete."""


class LoomChanged(LoomError):
    """The file that a reader follows was replaced, removed, shortened or overwritten. Open it again."""


class TurnNotFound(LoomError):
    """No turn in this loom has that id."""


def interrupts(error: BaseException) -> bool:
    """Whether an exception from third-party code must be raised again.

    True for a cancellation of this task, an interrupt of the process, and a loom that cannot be written. Everything
    else is a failure of that code, also a `SystemExit` or the cancellation of another task.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(map(interrupts, error.exceptions))
    if isinstance(error, KeyboardInterrupt | GeneratorExit | LoomWriteError):
        return True
    from asyncio import CancelledError, current_task

    if not isinstance(error, CancelledError):
        return False
    import anyio

    task = current_task()
    return (task is not None and task.cancelling() > 0) or anyio.current_effective_deadline() == float("-inf")


@contextmanager
def one_failure() -> Iterator[None]:
    """Raise the first failure of a task group by itself.

    Usually it is one failure of the loom or of the machine, and callers do not expect a group.
    """
    try:
        yield
    except BaseExceptionGroup as failures:
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


class GateFault(RuntimeWarning):
    """A warning: the code of a gate raised an error that is no `GateError`. It names the file and the line."""


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def own_frame(error: BaseException) -> tuple[str, int, str] | None:
    """File, line and function where somebody's own code failed: the last frame of it in the traceback.

    Code of this package is never meant; that of other packages only if there is no other. None if there is neither.
    """
    import traceback

    frames = [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_tb(error.__traceback__)]
    others = [each for each in frames if not each[0].startswith((_PACKAGE, "<frozen"))]
    own = [each for each in others if not each[0].startswith(_LIBRARY) and not any(i in each[0] for i in _INSTALLED)]
    installed = [
        each for each in others if any(i in each[0] for i in _INSTALLED) and f"{os.sep}anyio{os.sep}" not in each[0]
    ]
    found = own or installed
    return found[-1] if found else None


def describe(error: BaseException) -> str:
    """An exception in one line, for the person who must act: the text of a `GateError`, type and text of others, all
    parts of a group.
    """
    if isinstance(error, BaseExceptionGroup):
        shown = [describe(each) for each in error.exceptions[:_MOST_DESCRIBED]]
        more = len(error.exceptions) - len(shown)
        return "; ".join([*shown, f"and {more} more errors"] if more else shown)
    try:
        text = str(error)
    except Exception:  # noqa: BLE001
        text = "its text cannot be shown"
    text = text.encode("utf-8", "replace").decode("utf-8")
    if isinstance(error, GateError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_MOST_DESCRIBED = 5
