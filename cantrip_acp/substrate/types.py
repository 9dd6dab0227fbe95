"""The types that every substrate has: sessions and what is in them, programs and their processes, projects and culture.

Their ids are fixed (``type:session``), so that installing them again changes nothing. Everybody may read them: they are
placed on the scope `TYPES`.
"""

from __future__ import annotations

from cantrip_acp.substrate.boundary import Boundary
from cantrip_acp.substrate.chunks import Change, Commit, NewChunk, NewPlacement, Spec
from cantrip_acp.substrate.substrate import Substrate
from cantrip_acp.substrate.writing import ALL_TYPES

TYPES = ALL_TYPES
"""The scope of the types."""
AGENT = "program:agent"
"""The program that casts one of our entities."""
SESSION_TYPES = ("prompt", "answer", "tool-call", "tool-result", "context")
"""The types that a session accepts."""

_TEXTS = {
    "session": (
        "The trace of an interaction: what was asked, done and answered, in order.",
        Spec(True, True, SESSION_TYPES),
    ),
    "prompt": ("What was asked.", Spec(required=("text",))),
    "answer": ("What the model answered.", Spec(required=("text",))),
    "tool-call": ("A call of a program or gate.", Spec(required=("program",))),
    "tool-result": ("What a call gave back.", Spec(required=("program",))),
    "context": ("What the agent was reading: each chunk placed on it is a scope.", Spec(propagate=True, ordered=True)),
    "agent-task": ("What an agent is to do.", Spec(required=("intent",))),
    "program": ("An executable that an entity or a user can run.", Spec(required=("text",))),
    "process": ("One run of a program.", Spec(required=("program",))),
    "project": ("A workspace: its culture, documents, skills and sessions.", Spec(propagate=True)),
    "culture": ("Values, instructions and identity: what an agent reads first.", Spec(propagate=True)),
    "document": ("A document of a workspace.", Spec(required=("text",))),
    "skill": ("Knowledge and programs for one kind of task.", Spec(required=("text",))),
}


def type_id(name: str) -> str:
    """The id of one of the types, such as ``session``."""
    return f"type:{name}"


def of_type(name: str, chunk: str) -> NewPlacement:
    """The placement that makes a chunk an instance of a type."""
    return NewPlacement(chunk, type_id(name))


def install(substrate: Substrate) -> Commit:
    """Commit the types, if they are missing."""
    schema = {
        "intent": {"type": "string", "description": "What it is to do. It sees nothing else."},
        "crystal": {"type": "string", "description": "The model, as PROVIDER:MODEL. Default: yours."},
        "scopes": {
            "type": "array",
            "items": {"type": "string"},
            "maxItems": 20,
            "description": "Ids of the scopes that it reads, and no others. Default: what you may read.",
        },
    }
    chunks = [NewChunk(TYPES, "types", Spec(), {"text": "The types of this substrate."})]
    chunks += [
        NewChunk(type_id(name), name, spec, {"text": text} | ({"schema": schema} if name == "agent-task" else {}))
        for name, (text, spec) in _TEXTS.items()
    ]
    chunks.append(
        NewChunk(
            AGENT,
            "agent",
            Spec(True, True, ("agent-task",)),
            {"text": "Cast an entity for a task of its own, with any model, and get its answer.", "runtime": "vm"},
        )
    )
    placements = [NewPlacement(type_id(name), TYPES, "relates") for name in _TEXTS]
    # What a session accepts is defined by what relates to its type.
    placements += [NewPlacement(type_id(name), type_id("session"), "relates") for name in SESSION_TYPES]
    placements += [NewPlacement(AGENT, TYPES, "relates"), of_type("program", AGENT)]
    placements += [NewPlacement(type_id(name), AGENT, "relates") for name in (*SESSION_TYPES, "agent-task")]
    return substrate.commit(
        Change(chunks, placements), author="cantrip", source="import:types", message="install the types"
    )


def with_types(boundary: Boundary) -> Boundary:
    """A boundary that also allows reading the scope of the types (`TYPES`)."""
    return Boundary(tuple(scopes | {TYPES} for scopes in boundary.read), boundary.write, boundary.holder)
