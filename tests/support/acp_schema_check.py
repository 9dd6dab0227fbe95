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

_SCHEMA = json.loads((Path(__file__).parent / "acp_schema" / "v1.json").read_text())

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

LENT = {
    "fs/read_text_file": ("ReadTextFileRequest", ("fs", "readTextFile")),
    "fs/write_text_file": ("WriteTextFileRequest", ("fs", "writeTextFile")),
    "terminal/create": ("CreateTerminalRequest", ("terminal",)),
    "terminal/output": ("TerminalOutputRequest", ("terminal",)),
    "terminal/release": ("ReleaseTerminalRequest", ("terminal",)),
    "terminal/wait_for_exit": ("WaitForTerminalExitRequest", ("terminal",)),
    "terminal/kill": ("KillTerminalRequest", ("terminal",)),
    "elicitation/create": ("CreateElicitationRequest", ("elicitation", "form")),
}
"""What a client may be asked, and the capability by which it says so."""


def offered(capabilities: Any, method: str) -> bool:
    """Whether a client with these capabilities may be sent this."""
    value = capabilities
    for name in LENT[method][1]:
        value = value.get(name) if isinstance(value, dict) else None
    return value is True or isinstance(value, dict)


# What the schema of unstable parts adds to the stable one and we say of ourselves.
_SCHEMA["$defs"]["SessionCapabilities"]["properties"]["fork"] = {"type": "object", "maxProperties": 0}

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
for _reply in ("NewSessionResponse", "LoadSessionResponse", "ResumeSessionResponse"):
    _SCHEMA["$defs"][_reply]["properties"]["models"] = _MODELS
_SCHEMA["$defs"]["SetSessionModelResponse"] = {"type": "object", "properties": {}}


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
            out[key] = _closed(value, in_all_of=key == "allOf" or beside)
    if "allOf" in out and not in_all_of:
        out["unevaluatedProperties"] = False
    return out


@cache
def _validator(definition: str) -> jsonschema_rs.Draft202012Validator:
    closed = _closed(_SCHEMA)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": closed["$defs"],
        "allOf": [{"$ref": f"#/$defs/{definition}"}],
        "unevaluatedProperties": False,
    }
    return jsonschema_rs.Draft202012Validator(schema)


def check(definition: str, value: Any) -> None:
    """Fail with the first thing that is wrong with a value."""
    for error in _validator(definition).iter_errors(value):
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
            assert "id" in message
            assert offered(capabilities, message["method"]), f"{message['method']}, which nobody offered"
            check(LENT[message["method"]][0], message["params"])
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
        check("SessionNotification", message["params"])
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
    check(RESULTS[asked[key]], message["result"])
