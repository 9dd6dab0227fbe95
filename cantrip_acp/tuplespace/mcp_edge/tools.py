"""The five tools of the MCP server, as data: names, descriptions, and the JSON Schemas of arguments and answers."""

from __future__ import annotations

from typing import Any, Final

LONGEST_WAIT_S: Final = 3600
DEFAULT_WAIT_S: Final = 30

_ID = r"^sha256:[0-9a-f]{64}$"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_IF_NONE_MATCH: Final = {
    "type": "string",
    "description": "The etag of an earlier answer. If nothing has changed since, the answer is only that it is not modified.",
}
_ETAG: Final = {"type": "string", "description": "Changes when the answer changes. Give it back as if_none_match."}
_NOT_MODIFIED: Final = {"const": True, "description": "Nothing has changed since the answer with this etag."}


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _arguments(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _answer(required: list[str], **properties: Any) -> dict[str, Any]:
    """Make the schema of an answer: its etag, and either all required fields or ``not_modified``."""
    return {
        "type": "object",
        "properties": {"etag": _ETAG, "not_modified": _NOT_MODIFIED, **properties},
        "required": ["etag"],
        "anyOf": [{"required": ["not_modified"]}, {"required": required}],
    }


_NUMBER_OR_NULL: Final = {"type": ["number", "null"]}
_COST: Final = {
    "type": "object",
    "description": "What it has cost so far: US dollars, tokens, milliseconds. A part is null if it is unknown.",
    "properties": dict.fromkeys(("usd", "tokens_in", "tokens_out", "wall_ms"), _NUMBER_OR_NULL),
}
_TERMS: Final = {
    "type": "object",
    "description": "The budget and the limits of the tuple. The server reduces them to the limits of its operator.",
    "properties": {
        "budget_usd": {"type": "number", "minimum": 0},
        "budget_tokens": {"type": "integer", "minimum": 0},
        "deadline_iso": _text("ISO 8601 with a time zone. After it nothing of the tuple starts."),
        "max_retries": {"type": "integer", "minimum": 0},
        "cpu_quota_pct": {"type": "integer", "minimum": 1, "maximum": 100},
        "disk_quota_mb": {"type": "number", "minimum": 0},
    },
    "additionalProperties": False,
}
_CAPABILITY: Final = {
    "type": "object",
    "properties": {
        "name": _text("The name of the yool, such as agent.cast.review."),
        "dispatchable": {"type": "boolean", "description": "Whether tuple.dispatch of this server accepts it."},
        "dispatch_lanes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "dispatchable"],
}
_STATE: Final = {
    "tuple_id": _text("The id of the tuple: the hash of its content.", pattern=_ID),
    "lane": {"type": "string"},
    "state": {
        "enum": ["waiting", "claimed", "done", "failed", "taken"],
        "description": "claimed: a worker has it. done and failed are final. taken: another program removed it.",
    },
    "ended": {"type": "boolean", "description": "Whether the state is final."},
    "attempts": {"type": "integer"},
    "steps": {"type": "integer", "description": "How many steps the payload has."},
    "cost": _COST,
    "error": _text("Why it failed, or why the last attempt did."),
    "budget_spent": {
        "const": True,
        "description": "It waits because the budget that all tuples of this server share is spent. Its operator can raise it.",
    },
    "receipts": {
        "type": "array",
        "description": "The receipts of finished steps, and last the one that ends the tuple (step is null).",
        "items": {
            "type": "object",
            "properties": {
                "receipt_id": {"type": "string"},
                "step": {"type": ["integer", "null"]},
                "yool": {"type": "string"},
                "exit": {"type": "integer"},
                "reused": _text(
                    "The receipt whose result was reused, because nothing that the step reads had changed."
                ),
            },
            "required": ["receipt_id", "step", "yool", "exit"],
        },
    },
    "events": {
        "type": "array",
        "items": {"type": "object", "properties": {"event": {"type": "string"}}, "required": ["event"]},
        "description": "What happened during this call, in order: waiting, claimed, step, done, failed, taken.",
    },
    "receipt_id": _text("The receipt that ends the tuple. receipt.get returns it, with the result."),
}
_STATE_REQUIRED: Final = ["tuple_id", "lane", "state", "ended", "attempts", "steps", "cost", "receipts"]
_WAIT: Final = {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_S}

TOOLS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "catalog.lookup",
        "title": "Look up a capability",
        "description": "Describe one capability (yool) by its name. An unknown name gives an error with similar names.",
        "input": _arguments(["name"], name=_text("Such as agent.cast.review."), if_none_match=_IF_NONE_MATCH),
        "output": _answer(
            ["capability", "catalog_id"], capability=_CAPABILITY, catalog_id=_text("Identifies the whole catalog.")
        ),
        "writes": False,
    },
    {
        "name": "catalog.list_by_lane",
        "title": "List the capabilities of a lane",
        "description": "List the capabilities (yools) of a lane. Without a lane: of all lanes.",
        "input": _arguments([], lane=_text("Such as build."), if_none_match=_IF_NONE_MATCH),
        "output": _answer(
            ["capabilities", "catalog_id", "lanes"],
            catalog_id=_text("Identifies the whole catalog."),
            lanes={
                "type": "array",
                "items": {"type": "string"},
                "description": "The lanes into which tuple.dispatch of this server puts tuples; the first one is the default.",
            },
            capabilities={"type": "array", "items": _CAPABILITY},
        ),
        "writes": False,
    },
    {
        "name": "tuple.dispatch",
        "title": "Dispatch a tuple",
        "description": "Put a unit of work (a tuple) into a lane. A worker runs it and ends it with a receipt. Name a recipe and "
        "an intent, or give a payload of steps. The same work has the same id and is done only once: to repeat it, give another "
        'number in map_pos, such as {"sample": 1}. Then wait with tuple.observe, or give wait_s.',
        "input": _arguments(
            [],
            recipe=_text("The recipe to cast, by its name. Needs intent, and excludes payload."),
            intent=_text("What the entity is asked to do."),
            payload={
                "type": "array",
                "minItems": 1,
                "maxItems": 1000,
                "description": "Steps. They run in order, or after the steps that `after` names by their id.",
                "items": {
                    "type": "object",
                    "properties": {
                        "yool": _text("Such as agent.cast.review."),
                        "args": {"type": "object", "description": 'Of agent.cast.*: {"intent": "…"}.'},
                        "id": _text("A name for `after`.", pattern=_NAME),
                        "after": {"type": "array", "items": {"type": "string"}},
                    },
                    "required": ["yool"],
                    "additionalProperties": False,
                },
            },
            lane=_text("The lane. Without it: the first lane of this server."),
            map_pos={"type": "object", "description": "Where the work belongs, such as repository and branch."},
            src_ptr={
                "type": "array",
                "items": {"type": "string"},
                "description": "Where the work comes from, such as commit://abc123.",
            },
            agent_terms=_TERMS,
            flags={
                "type": "object",
                "properties": {
                    "no_cache": {
                        "type": "boolean",
                        "description": "Run all steps, also those whose answer could be reused.",
                    }
                },
                "additionalProperties": False,
            },
            wait_s={
                **_WAIT,
                "description": "Wait up to so many seconds for its end, with progress. 0: do not wait.",
                "default": 0,
            },
        ),
        "output": {
            "type": "object",
            "properties": {
                "etag": _ETAG,
                **_STATE,
                "new": {"type": "boolean", "description": "False if the tuple was known already: it is the same work."},
                "agent_terms": {**_TERMS, "description": "The limits that apply."},
                "hint": _text("What to do next."),
            },
            "required": ["etag", "new", *_STATE_REQUIRED],
        },
        "writes": True,
    },
    {
        "name": "tuple.observe",
        "title": "Observe a tuple",
        "description": "The state of a tuple. Waits until it ends or changes. Meanwhile it reports each event as progress, to "
        "clients that ask for that. If the time is over first, the answer is the present state.",
        "input": _arguments(
            ["tuple_id"],
            tuple_id=_text("What tuple.dispatch returned.", pattern=_ID),
            until={
                "enum": ["end", "change"],
                "default": "end",
                "description": "change: return at the first change since the call, or since the answer with that etag.",
            },
            timeout_s={
                **_WAIT,
                "description": "How long to wait. 0: return the present state.",
                "default": DEFAULT_WAIT_S,
            },
            if_none_match=_IF_NONE_MATCH,
        ),
        "output": _answer(_STATE_REQUIRED, **_STATE),
        "writes": False,
    },
    {
        "name": "receipt.get",
        "title": "Get a receipt",
        "description": "A receipt by its id: result, error, cost and times of one step or of a whole tuple. Receipts never change.",
        "input": _arguments(
            ["receipt_id"],
            receipt_id=_text("The receipt_id that tuple.observe returned.", pattern=_ID),
            if_none_match=_IF_NONE_MATCH,
        ),
        "output": _answer(
            ["receipt"],
            result={"description": "A result that is too large for its receipt (artifacts), if it was not purged."},
            receipt={
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "yool": {"type": "string"},
                    "tuple_id": {"type": "string"},
                    "started_at": {"type": "string"},
                    "ended_at": {"type": "string"},
                    "exit": {"type": "integer", "description": "0 is success."},
                    "cost": _COST,
                    "result": {"description": "What the yool returned. Of a cast: its answer, turns, usage and loom."},
                    "error": {"type": "string"},
                    "reused": _text(
                        "The receipt whose result this one repeats, because nothing that the step reads had changed."
                    ),
                    "steps": {"type": "array", "items": {"type": "string"}},
                    "artifacts": {
                        "type": "array",
                        "items": {"type": "object"},
                        "description": "Hash and size of what is too large for the receipt.",
                    },
                },
                "required": ["id", "yool", "tuple_id", "exit", "cost"],
            },
        ),
        "writes": False,
    },
)
"""Each tool: ``name``, ``title``, ``description``, ``input`` and ``output`` (JSON Schemas), and whether it ``writes``."""
