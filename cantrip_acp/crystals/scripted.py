"""Scripted crystal: plays fixed responses in order, for tests, demos and benchmarks without a paid model.

It follows the crystal contract except CRYSTAL-1: this object remembers its position in the script, and all casts of one
cantrip share that position.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from cantrip_acp.crystals.contract import Crystal, CrystalBase, Delta, Emit, Query, Response
from cantrip_acp.crystals.openai.tool_names import wire_name
from cantrip_acp.types.checked_values import check_text, check_whole
from cantrip_acp.types.errors import ContextLimitError, CrystalError, DefinitionError, ScriptExhausted
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from cantrip_acp.crystals.text_tools import StreamedTextFilter

KEYS = frozenset(
    {
        "content",
        "thinking",
        "tool_calls",
        "code",
        "bash",
        "usage",
        "error",
        "delay_ms",
        "chunks",
        "when",
        "repeat",
        "tool_result",
    }
)
"""The allowed keys of a response in a script."""

TOOLS = ("native", "text")
"""The ways in which a scripted crystal calls tools: as native calls, or in its text."""

_USAGE_KEYS = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "total_tokens",
    "cost",
)


class ScriptedCrystal(CrystalBase):
    """Plays ``responses``. Each is a mapping with keys of `KEYS`.

    - ``content``, ``thinking``: text. ``chunks``: the text as a list of streamed pieces.
    - ``tool_calls``: a list of ``{id?, gate, args}``. ``args`` is a mapping, or text that is used unchanged.
    - ``bash``, ``code``: a call of the medium's own tool with this command or program.
    - ``usage``: prompt_tokens, completion_tokens, cached_tokens, cost. The default is the script's ``usage``.
    - ``error``: ``{status, message, retry_after?}``. The query fails with this error.
    - ``delay_ms``: milliseconds to wait before each piece.
    - ``when``: use the response only if the intent contains this text. ``repeat``: the response is never used up.

    With ``tools="text"`` it plays a model that writes its tool calls as text: ``tool_call`` blocks in ``content`` are
    parsed as calls, and a program may be a code block (`mediums.text_program`).

    ``children`` are scripts for child entities, in the order in which they start. With ``record_inputs`` every query is
    stored in ``invocations``, with a copy of its messages. ``queries`` counts all queries. A query after the end of the
    script raises `ScriptExhausted`.
    """

    samples = False

    def __init__(
        self,
        responses: Iterable[Mapping[str, Any]] = (),
        *,
        children: Sequence[Any] = (),
        usage: Mapping[str, Any] | None = None,
        record_inputs: bool = False,
        name: str = "scripted",
        model: str = "scripted",
        context_window: int | None = None,
        tools: str = "native",
    ) -> None:
        self.name = check_text(name, "ScriptedCrystal.name", blank=False)
        self.model = check_text(model, "ScriptedCrystal.model", blank=False)
        if context_window is not None:
            check_whole(context_window, "ScriptedCrystal.context_window", 1)
        self.context_window = context_window
        if tools not in TOOLS:
            raise DefinitionError(f"tools is {tools!r}; it is one of {', '.join(TOOLS)}", where="crystal.tools")
        self.text_calls = tools == "text"
        self.children = tuple(children)
        self.invocations: list[Query] = []
        self.queries = 0
        self._record = record_inputs
        self._usage = _usage(usage, "usage") if usage is not None else NO_USAGE
        self._script = [_Step(r, i) for i, r in enumerate(responses)]
        self._used = [False] * len(self._script)
        self._first = 0

    def __repr__(self) -> str:
        return f"ScriptedCrystal({len(self._script)} responses, {self.queries} played)"

    async def query(self, query: Query, emit: Emit) -> Response:
        self.queries += 1
        if self._record:
            self.invocations.append(msgspec.structs.replace(query, messages=tuple(query.messages)))
        step = self._next(query.intent)
        usage = step.usage if step.usage is not None else None if step.error is not None else self._usage
        if usage is not None and usage != NO_USAGE:
            # Report usage as a provider does: at the end of the answer, or with the error.
            query.meter.sent()
            if step.error is not None:
                query.meter.report(usage, complete=True)
        if step.delay_s and not step.pieces:
            await anyio.sleep(step.delay_s)
        if step.error is not None:
            raise step.failure()
        self._check_window(query)
        if step.thinking:
            await emit(Delta("thought", step.thinking))
        reader = self._reader(query)
        for piece in step.pieces:
            if step.delay_s:
                await anyio.sleep(step.delay_s)
            for delta in (Delta("text", piece),) if reader is None else reader.feed(piece):
                await emit(delta)
        if step.fixed:
            calls = step.calls
        else:
            # Make ids that are missing in the script. They are unique for this object.
            calls = tuple(
                c if c.id else ToolCall(f"tc_{self.queries}_{i}", c.gate, c.args) for i, c in enumerate(step.calls, 1)
            )
        found: tuple[ToolCall, ...] = ()
        if reader is not None:
            rest, _, _, written = reader.finish()
            for delta in rest:
                await emit(delta)
            shown = {wire_name(tool.name): tool.name for tool in query.tools}
            found = tuple(
                ToolCall(f"tc_{self.queries}_{i}", shown.get(name, name), args)
                for i, (name, args) in enumerate(() if calls else written, 1)
            )
        return Response(
            content=step.content,
            thinking=step.thinking,
            tool_calls=calls or found,
            text_calls=bool(found),
            usage=usage if usage is not None else NO_USAGE,
            model=self.model,
            tool_results=step.tool_results,
        )

    def _reader(self, query: Query) -> StreamedTextFilter | None:
        """Make the filter that finds calls in the text of a response. None if the script has only native calls."""
        if not self.text_calls:
            return None
        from cantrip_acp.crystals.text_tools import StreamedTextFilter

        names = [wire_name(tool.name) for tool in query.tools] if query.tool_choice != "none" else []
        return StreamedTextFilter(names, tags={})

    def child(self, number: int, depth: int) -> Crystal:
        """Make the crystal for an entity's child with this number (from 0). Without child scripts, it is this crystal.

        Raises `CrystalError` if ``children`` is too short.
        """
        if not self.children:
            return self
        if number >= len(self.children):
            raise CrystalError(
                f"the script has no script for child {number + 1}: its list of children has {len(self.children)}",
                retryable=False,
            )
        script = self.children[number]
        if not isinstance(script, Mapping):
            script = {"responses": script}
        return ScriptedCrystal(
            script.get("responses") or (),
            children=script.get("children") or (),
            usage=script.get("usage") or None,
            record_inputs=self._record,
            name=self.name,
            model=str(script.get("model") or self.model),
            context_window=script.get("context_window") or self.context_window,
            tools=script.get("tools") or ("text" if self.text_calls else "native"),
        )

    def skip(self, queries: int) -> None:
        """Skip the responses of this many queries, for a session that is loaded again."""
        for _ in range(queries):
            self.queries += 1
            while self._first < len(self._script) and (self._used[self._first] or self._script[self._first].repeat):
                if self._script[self._first].repeat:
                    return
                self._first += 1
            if self._first < len(self._script):
                self._used[self._first] = True

    def _next(self, intent: str) -> _Step:
        while self._first < len(self._used) and self._used[self._first]:
            self._first += 1
        for index in range(self._first, len(self._script)):
            step = self._script[index]
            if self._used[index] or (step.when is not None and step.when not in intent):
                continue
            if not step.repeat:
                self._used[index] = True
            return step
        raise ScriptExhausted(
            f"the script has run out: no response is left for query {self.queries} "
            f"({len(self._script)} in the script; the intent begins {intent[:60]!r})",
            retryable=False,
        )

    def _check_window(self, query: Query) -> None:
        if self.context_window is None:
            return
        # Without a tokenizer, four characters per token is the usual estimate.
        tokens = sum(len(m.content or "") + sum(len(c.args) for c in m.tool_calls) for m in query.messages) // 4
        if tokens > self.context_window:
            raise ContextLimitError(
                f"about {tokens} tokens do not fit the window of {self.context_window} tokens of {self.model}",
                tokens=tokens,
                limit=self.context_window,
            )


class _Step:
    """One validated response of a script."""

    __slots__ = (
        "calls",
        "content",
        "delay_s",
        "error",
        "fixed",
        "pieces",
        "repeat",
        "thinking",
        "tool_results",
        "usage",
        "when",
    )

    def __init__(self, raw: Mapping[str, Any], index: int) -> None:
        where = f"responses[{index}]"
        if not isinstance(raw, Mapping):
            raise DefinitionError(f"a response must be a mapping, not {raw!r}", where=where)
        for key in raw:
            if key not in KEYS:
                near = difflib.get_close_matches(str(key), KEYS, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(KEYS))}"
                raise DefinitionError(f"unknown key {key!r}{hint}", where=where)
        content = raw.get("content")
        chunks = raw.get("chunks")
        if content is not None and not isinstance(content, str):
            content = str(content)
        if chunks is not None:
            if not isinstance(chunks, list | tuple):
                raise DefinitionError("chunks is a list of texts", where=where)
            chunks = tuple(str(c) for c in chunks)
            content = "".join(chunks) if content is None else content
        self.content: str | None = content
        self.thinking: str | None = raw.get("thinking")
        self.pieces: tuple[str, ...] = chunks if chunks is not None else (content,) if content else ()
        self.calls = _calls(raw, where)
        self.fixed = all(c.id for c in self.calls)
        self.usage = _usage(raw["usage"], where) if raw.get("usage") is not None else None
        self.error: Mapping[str, Any] | None = raw.get("error")
        self.delay_s = float(raw.get("delay_ms") or 0) / 1000
        self.when: str | None = raw.get("when")
        self.repeat = bool(raw.get("repeat"))
        self.tool_results = _tool_results(raw.get("tool_result"), where)

    def failure(self) -> CrystalError:
        error: Mapping[str, Any] = self.error if isinstance(self.error, Mapping) else {"message": str(self.error)}
        status = error.get("status")
        message = error.get("message") or f"scripted failure with status {status}"
        if error.get("code") == "context_length_exceeded":
            return ContextLimitError(message)
        return CrystalError(message, status=status, retry_after=error.get("retry_after"))


def _calls(raw: Mapping[str, Any], where: str) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    for n, call in enumerate(raw.get("tool_calls") or ()):
        if not isinstance(call, Mapping) or not call.get("gate", call.get("name")):
            raise DefinitionError(f"tool_calls[{n}] must be a mapping with a gate, not {call!r}", where=where)
        args = call.get("args", call.get("arguments"))
        text = args if isinstance(args, str) else msgspec.json.encode(args if args is not None else {}).decode()
        calls.append(ToolCall(str(call.get("id") or ""), str(call.get("gate", call.get("name"))), text))
    for key, tool, argument in (("bash", "bash", "command"), ("code", "python", "code")):
        if raw.get(key) is not None:
            calls.append(ToolCall("", tool, msgspec.json.encode({argument: str(raw[key])}).decode()))
    return tuple(calls)


def _usage(raw: Any, where: str) -> Usage:
    if not isinstance(raw, Mapping):
        raise DefinitionError(f"usage must be a mapping of token counts, not {raw!r}", where=where)
    for key in raw:
        if key not in _USAGE_KEYS:
            raise DefinitionError(f"unknown key {key!r} in usage; known: {', '.join(_USAGE_KEYS)}", where=where)
    # A null count means that the provider does not report it.
    return Usage(**{k: v for k, v in raw.items() if k != "total_tokens"})


def _tool_results(raw: Any, where: str) -> tuple[str, ...]:
    if raw is None:
        return ()
    items = raw if isinstance(raw, list | tuple) else [raw]
    ids = []
    for item in items:
        if not isinstance(item, Mapping) or "tool_call_id" not in item:
            raise DefinitionError("tool_result is a mapping with a tool_call_id", where=where)
        ids.append(str(item["tool_call_id"]))
    return tuple(ids)
