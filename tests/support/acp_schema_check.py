"""What the agent sends, held against the protocol's published JSON Schema, and against what that schema leaves open.

The schema ignores members that it does not know; the protocol forbids to add any ("Implementations MUST NOT add any custom
fields at the root of a type that's part of the specification"). So the check here is the published one with every object
closed, `_meta` apart, which the schema itself leaves open.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

_FOLDER = Path(__file__).parent / "acp_schema"

V1, V1_UNSTABLE, V2, V2_UNSTABLE = "v1", "v1.unstable", "v2", "v2.unstable"

RESULTS = {
    "initialize": "InitializeResponse",
    "authenticate": "AuthenticateResponse",
    "logout": "LogoutResponse",
    "session/new": "NewSessionResponse",
    "session/load": "LoadSessionResponse",
    "session/resume": "ResumeSessionResponse",
    # Not stable; its reply has the shape of the one to session/new.
    "session/fork": "NewSessionResponse",
    "session/list": "ListSessionsResponse",
    "session/close": "CloseSessionResponse",
    "session/delete": "DeleteSessionResponse",
    "session/set_mode": "SetSessionModeResponse",
    "session/set_model": "SetSessionModelResponse",
    "session/set_config_option": "SetSessionConfigOptionResponse",
    "session/prompt": "PromptResponse",
}

UNSTABLE_RESULTS = {
    # It says which of the unstable methods there are.
    "initialize": "InitializeResponse",
    "session/set_title": "SetSessionTitleResponse",
    "providers/list": "ListProvidersResponse",
    "providers/set": "SetProviderResponse",
    "providers/disable": "DisableProviderResponse",
}
"""What only the schema with the unstable parts describes."""

ASKED_FOR = {
    "notice": ("session", "notices"),
    "compaction_update": ("session", "compaction"),
    "compaction_summary_chunk": ("session", "compaction"),
    "plan_update": ("plan",),
    "subagent_update": ("subagents",),
    "session_message": ("subagents",),
}
"""Updates of version 1 that a client gets only if it has this capability."""

UNSTABLE_UPDATES = {
    V1: {"plan_update", "subagent_update", "session_message"},
    V2: {"subagent_update", "session_message"},
}

RESULTS_V2 = {
    "initialize": "InitializeResponse",
    "auth/login": "LoginAuthResponse",
    "auth/logout": "LogoutAuthResponse",
    "session/new": "NewSessionResponse",
    "session/resume": "ResumeSessionResponse",
    "session/fork": "ForkSessionResponse",
    "session/list": "ListSessionsResponse",
    "session/close": "CloseSessionResponse",
    "session/delete": "DeleteSessionResponse",
    "session/set_config_option": "SetSessionConfigOptionResponse",
    "session/set_title": "SetSessionTitleResponse",
    "session/prompt": "PromptResponse",
    "tool_call/cancel": "CancelToolCallResponse",
    "providers/list": "ListProvidersResponse",
    "providers/set": "SetProviderResponse",
    "providers/disable": "DisableProviderResponse",
}
UNSTABLE_V2 = {
    "initialize",
    "session/fork",
    "session/set_title",
    "providers/list",
    "providers/set",
    "providers/disable",
}
REQUESTS_V2 = {
    "session/request_permission": "RequestPermissionRequest",
    "elicitation/create": "CreateElicitationRequest",
    "elicitation/complete": "CompleteElicitationNotification",
}

LENT = {
    "fs/read_text_file": ("ReadTextFileRequest", ("fs", "readTextFile")),
    "fs/write_text_file": ("WriteTextFileRequest", ("fs", "writeTextFile")),
    "terminal/create": ("CreateTerminalRequest", ("terminal",)),
    "terminal/output": ("TerminalOutputRequest", ("terminal",)),
    "terminal/release": ("ReleaseTerminalRequest", ("terminal",)),
    "terminal/wait_for_exit": ("WaitForTerminalExitRequest", ("terminal",)),
    "terminal/kill": ("KillTerminalRequest", ("terminal",)),
    "elicitation/create": ("CreateElicitationRequest", ("elicitation",)),
    "elicitation/complete": ("CompleteElicitationNotification", ("elicitation", "url")),
}
"""What a client may be asked, and the capability by which it says so."""


def offered(capabilities: Any, path: tuple[str, ...]) -> bool:
    """Whether a client with these capabilities has this one."""
    value = capabilities
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value is True or isinstance(value, dict)


# What earlier schemas had and some clients still read: the models of a session, beside the option of the same values.
_MODEL = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("modelId", "name", "description")},
    "required": ["modelId", "name"],
    "additionalProperties": False,
}
_MODELS = {
    "type": "object",
    "properties": {"currentModelId": {"type": "string"}, "availableModels": {"type": "array", "items": _MODEL}},
    "required": ["currentModelId", "availableModels"],
    "additionalProperties": False,
}


def _read(version: str) -> Any:
    schema = json.loads((_FOLDER / f"{version}.json").read_text())
    if version == V1:
        for reply in ("NewSessionResponse", "LoadSessionResponse", "ResumeSessionResponse"):
            schema["$defs"][reply]["properties"]["models"] = _MODELS
        schema["$defs"]["SetSessionModelResponse"] = {"type": "object", "properties": {}}
    return schema


def _closed(node: Any, *, in_all_of: bool = False) -> Any:
    """The same schema, in which an object may have no member that is not described."""
    if isinstance(node, list):
        return [_closed(item, in_all_of=in_all_of) for item in node]
    if not isinstance(node, dict):
        return node
    if set(node) == {"$ref"}:
        return node if in_all_of else {"allOf": [node], "unevaluatedProperties": False}
    out = {}
    for key, value in node.items():
        if key in ("properties", "$defs"):
            # A definition is closed where it is used: others are built upon it.
            out[key] = {name: _closed(each, in_all_of=key == "$defs") for name, each in value.items()}
        else:
            # Branches beside properties describe the same object: it is closed as a whole.
            beside = key in ("oneOf", "anyOf") and "properties" in node
            # So do branches of what is closed where it is used.
            open_still = in_all_of and key in ("oneOf", "anyOf")
            out[key] = _closed(value, in_all_of=key == "allOf" or beside or open_still)
    if "allOf" in out and not in_all_of:
        out["unevaluatedProperties"] = False
    return out


@cache
def _definitions(version: str) -> Any:
    return _closed(_read(version))


@cache
def _validator(definition: str, version: str) -> jsonschema_rs.Draft202012Validator:
    closed = _definitions(version)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": closed["$defs"],
        "allOf": [{"$ref": f"#/$defs/{definition}"}],
        "unevaluatedProperties": False,
    }
    return jsonschema_rs.Draft202012Validator(schema)


def check(definition: str, value: Any, version: str = V1) -> None:
    """Fail with the first thing that is wrong with a value."""
    for error in _validator(definition, version).iter_errors(value):
        raise AssertionError(
            f"not a {definition}: {error.message} at {list(error.instance_path)}\n{json.dumps(value)[:2000]}"
        )


def check_message(message: Any, asked: dict[Any, str], capabilities: Any = None) -> None:
    """Check one message of the agent; ``asked`` has the method of each request by its id."""
    assert isinstance(message, dict), message
    assert message.get("jsonrpc") == "2.0", message
    if "method" in message:
        assert set(message) <= {"jsonrpc", "id", "method", "params"}, message
        if message["method"] == "session/request_permission":
            assert "id" in message
            check("RequestPermissionRequest", message["params"])
            return
        if message["method"] in LENT:
            definition, capability = LENT[message["method"]]
            if message["method"] == "elicitation/create":
                capability = ("elicitation", message["params"]["mode"])
            assert ("id" in message) == definition.endswith("Request")
            assert offered(capabilities, capability), f"{message['method']}, which nobody offered"
            check(definition, message["params"])
            return
        if message["method"] == "$/cancel_request":
            assert "id" not in message
            return
        if message["method"] == "_cantrip/queue_changed":
            assert "id" not in message
            asked_for = [(capabilities or {}).get("_meta", {}).get(name, {}) for name in ("cantrip", "claudeCode")]
            assert any(each.get("promptQueueing") is True for each in asked_for), message
            return
        assert message["method"] == "session/update", f"a client is sent {message['method']}, which nobody offered"
        assert "id" not in message
        kind = message["params"]["update"]["sessionUpdate"]
        assert kind not in ASKED_FOR or offered(capabilities, ASKED_FOR[kind]), f"{kind}, which nobody asked for"
        check("SessionNotification", message["params"], V1_UNSTABLE if kind in UNSTABLE_UPDATES[V1] else V1)
        return
    assert "id" in message, message
    if "error" in message:
        assert set(message) == {"jsonrpc", "id", "error"}, message
        check("Error", message["error"])
        assert message["error"]["message"]
        assert len(message["error"]["message"].splitlines()) == 1, message
        assert "Traceback" not in json.dumps(message), message
        return
    assert set(message) == {"jsonrpc", "id", "result"}, message
    key = json.dumps(message["id"])
    assert key in asked, f"an answer to nothing that was asked: {message}"
    if asked[key].startswith("_"):
        # An extension of our own: the schema only says that it is data.
        assert isinstance(message["result"], dict), message
        return
    if asked[key] in UNSTABLE_RESULTS:
        check(UNSTABLE_RESULTS[asked[key]], message["result"], V1_UNSTABLE)
        return
    check(RESULTS[asked[key]], message["result"])


def check_message_v2(message: Any, asked: dict[Any, str], capabilities: Any = None) -> None:
    """Check one message of the agent in version 2."""
    assert message.get("jsonrpc") == "2.0", message
    method = message.get("method")
    if method in REQUESTS_V2:
        if method.startswith("elicitation"):
            mode = message["params"].get("mode", "url")
            assert offered(capabilities, ("elicitation", mode)), f"{method}, which nobody offered"
        check(REQUESTS_V2[method], message["params"], V2)
    elif method == "session/update":
        kind = message["params"]["update"]["sessionUpdate"]
        assert "id" not in message
        if "error" in message["params"]["update"]:
            # Data of an error may be anything.
            message = json.loads(json.dumps(message))
            message["params"]["update"]["error"].pop("data", None)
        assert kind in _kinds(V2) | UNSTABLE_UPDATES[V2], f"not an update of version 2: {kind}"
        check("UpdateSessionNotification", message["params"], V2_UNSTABLE if kind in UNSTABLE_UPDATES[V2] else V2)
    elif method == "_cantrip/queue_changed":
        assert offered(capabilities, ("_meta", "cantrip", "promptQueueing")), message
    elif method is not None:
        assert method == "$/cancel_request", f"a client is sent {method}"
    elif "error" in message:
        # Data of other errors than these may be anything.
        free = message["error"]["code"] != -32002
        check("Error", {k: v for k, v in message["error"].items() if k != "data" or not free}, V2)
        assert len(message["error"]["message"].splitlines()) == 1, message
    else:
        name = asked[json.dumps(message["id"])]
        if name.startswith("_"):
            return
        check(RESULTS_V2[name], message["result"], V2_UNSTABLE if name in UNSTABLE_V2 else V2)


@cache
def _kinds(version: str) -> frozenset[str]:
    """The kinds of updates that a schema describes. Its last branch takes any other one."""
    update = _read(version)["$defs"]["SessionUpdate"]
    branches = update.get("anyOf") or update["oneOf"]
    found = (branch.get("properties", {}).get("sessionUpdate", {}).get("const") for branch in branches)
    return frozenset(kind for kind in found if kind)
