"""Make `cantrip_acp/crystals/catalog/models.json`, the table of models that ships.

    python tools/models_json.py                  # make the table from the recorded inputs; needs no network
    python tools/models_json.py --record WHEEL   # record litellm's data anew from its wheel, then make the table
    python tools/models_json.py --check          # 1 if the table is not what the recorded inputs make

Get the wheel with ``pip download --no-deps litellm``. Two inputs, both in `tools/models/`:

- ``litellm.json``: what litellm (PyPI) says of Anthropic's, OpenAI's and Google's models, cut to what is used here, with the
  version it came from and the day it was recorded;
- ``by_hand.json``: what was read in the providers' own pages. It stands over litellm field by field, and it alone has the
  default models, the rules for families, the models of OpenRouter and Ollama, and the successors of retired models.

In the table, ``from`` of a model names the inputs it has fields of.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "models"
RECORDED = HERE / "litellm.json"
BY_HAND = HERE / "by_hand.json"
TABLE = Path(__file__).parent.parent / "cantrip_acp/crystals/catalog/models.json"

INSIDE = "litellm/model_prices_and_context_window_backup.json"
PROVIDERS = {"anthropic": "anthropic", "openai": "openai", "gemini": "google"}
_DATED = re.compile(
    r"-(?:latest|\d{8}|\d{4}-\d{2}-\d{2}|\d{2}-\d{4}|preview-\d{2}-\d{2}|preview-\d{2}-\d{4}|\d{3,4})\Z"
)
_SPECIAL = re.compile(
    r"^ft:|/|audio|search|live|robotics|computer-use|deep-research|rosalind|cyber|daybreak|-law|learnlm|gemma|lyria|omni"
    r"|tts|-exp|container|customtools|image|chat-latest|-chat$"
)
"""Names of models that are made for something else than an agent."""

_USED = re.compile(
    r"mode$|deprecation_date$|max_(?:input|output)_tokens$|thinking_always_on$|source$"
    r"|(?:input|output|cache_read_input|cache_creation_input)_(?:token_cost|cost_per_token)(?:_above_\d+k_tokens)?$"
    r"|supports_(?:vision|audio_input|pdf_input|function_calling|reasoning|adaptive_thinking|sampling_params|forced_tool_use"
    r"|\w+_reasoning_effort)$"
)


def record(wheel: Path) -> dict[str, Any]:
    """What litellm's wheel says of the models of three providers, cut to the fields that are used."""
    with zipfile.ZipFile(wheel) as archive:
        data: dict[str, dict[str, Any]] = json.loads(archive.read(INSIDE))
    models: dict[str, dict[str, Any]] = {provider: {} for provider in PROVIDERS.values()}
    for key, entry in data.items():
        provider = PROVIDERS.get(entry.get("litellm_provider", ""))
        if provider is None or entry.get("mode") not in ("chat", "responses"):
            continue
        name = key.removeprefix("gemini/")
        if _SPECIAL.search(name) or (_DATED.sub("", name) != name and not name.endswith("-latest")):
            continue
        models[provider][name] = {k: v for k, v in sorted(entry.items()) if _USED.match(k)}
    return {
        "package": "litellm",
        "version": wheel.name.split("-")[1],
        "file": INSIDE,
        "recorded": date.today().isoformat(),
        "models": models,
    }


def made(recorded: Mapping[str, Any], by_hand: Mapping[str, Any]) -> dict[str, Any]:
    """The table."""
    today = by_hand["date"]
    models: dict[str, dict[str, Any]] = {}
    retired: dict[str, dict[str, Any]] = {p: dict(entries) for p, entries in by_hand["retired"].items()}
    for provider, given in by_hand["models"].items():
        theirs = {name: _read(provider, entry) for name, entry in recorded["models"].get(provider, {}).items()}
        table = models[provider] = {}
        for name in dict.fromkeys((*given, *theirs)):
            if name in retired.get(provider, {}):
                continue
            sources = [s for s, held in (("litellm", theirs), ("hand", given)) if held.get(name) is not None]
            entry = {**theirs.get(name, {}), **given.get(name, {})}
            if provider not in ("ollama", "embedded") and not {"context_window", "price"} <= set(entry):
                continue  # nothing that a table is for
            if name not in given and entry.get("retired", today) < today:
                retired.setdefault(provider, {})[name] = {"retired": entry["retired"]}
                continue
            if entry.get("max_input", 0) >= entry.get("context_window", 0):
                entry.pop("max_input", None)
            table[name] = {**entry, "from": sources}
    source = {key: recorded[key] for key in ("package", "version", "file", "recorded")}
    return {
        "date": today,
        "about": by_hand["about"],
        "sources": {"litellm": source, "hand": {"read": today, "pages": by_hand["sources"]}},
        "notes": by_hand["notes"],
        "defaults": by_hand["defaults"],
        "families": by_hand["families"],
        "retired": retired,
        "models": models,
    }


def _read(provider: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of litellm's as one of ours."""
    out: dict[str, Any] = {}
    takes, answers = entry.get("max_input_tokens"), entry.get("max_output_tokens")
    if not takes or not entry.get("supports_function_calling"):
        return out
    # For OpenAI's newer models litellm gives the largest input, which with the largest answer makes up the window.
    apart = provider == "openai" and takes in (272_000, 922_000) and answers
    out["context_window"] = takes + answers if apart else takes
    if apart:
        out["max_input"] = takes
    if answers:
        out["max_output"] = answers
    price = _price(entry, "")
    if price:
        above = next(
            (m[1] for key in entry if (m := re.match(r"input_cost_per_token_above_(\d+)k_tokens$", key))), None
        )
        if above:
            price |= {"above": int(above) * 1000, "long": _price(entry, f"_above_{above}k_tokens")}
        out["price"] = price
    for ours, key in (("images", "vision"), ("audio", "audio_input"), ("documents", "pdf_input")):
        if entry.get(f"supports_{key}"):
            out[ours] = True
    if entry.get("supports_reasoning"):
        out["reasoning"] = True
        out["efforts"] = _efforts(provider, entry)
        if not out["efforts"]:
            del out["efforts"]
        if provider == "openai":
            out["sampling"] = False
    if entry.get("supports_sampling_params") is False:
        out["sampling"] = False
    if entry.get("supports_forced_tool_use") is False:
        out["forced_tools"] = False
    if provider == "anthropic" and entry.get("supports_reasoning"):
        adaptive = entry.get("supports_adaptive_thinking")
        out["thinking"] = ("always" if entry.get("thinking_always_on") else "adaptive") if adaptive else "budget"
    if entry.get("deprecation_date"):
        out["retired"] = entry["deprecation_date"]
    return out


def _price(entry: Mapping[str, Any], end: str) -> dict[str, Any]:
    keys = {
        "input": "input_cost_per_token",
        "output": "output_cost_per_token",
        "cached": "cache_read_input_token_cost",
        "cache_write": "cache_creation_input_token_cost",
    }
    found = {name: round(entry[key + end] * 1e6, 6) for name, key in keys.items() if entry.get(key + end) is not None}
    return {name: int(value) if value == int(value) else value for name, value in found.items()}


def _efforts(provider: str, entry: Mapping[str, Any]) -> list[str]:
    """The efforts that a model takes, from the least; empty where its thinking goes by a budget, which takes every word."""

    def says(effort: str) -> bool | None:
        found: bool | None = entry.get(f"supports_{effort}_reasoning_effort")
        return found

    if provider == "anthropic":
        if not entry.get("supports_adaptive_thinking"):
            return []
        least = [] if entry.get("thinking_always_on") else ["none"]
        return [*least, "low", "medium", "high", *(e for e in ("xhigh", "max") if says(e))]
    if provider == "openai":
        least = [e for e in ("none", "minimal") if says(e)] + ([] if says("low") is False else ["low"])
        return [*least, "medium", "high", *(e for e in ("xhigh", "max") if says(e))]
    return []


def written(table: Mapping[str, Any]) -> str:
    """The table as text: a model a line."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    parts = [f' "{key}": {line(value)}' for key, value in table.items() if key not in ("families", "retired", "models")]
    rules = ",\n".join(f"  {line(rule)}" for rule in table["families"])
    parts.append(f' "families": [\n{rules}\n ]')
    for key in ("retired", "models"):
        providers = []
        for provider, entries in table[key].items():
            rows = ",\n".join(f"   {line(name)}: {line(entry)}" for name, entry in entries.items())
            providers.append(f"  {line(provider)}: {{\n{rows}\n  }}")
        parts.append(f' "{key}": {{\n' + ",\n".join(providers) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def from_recorded() -> str:
    """The table's text from the recorded inputs."""
    return written(made(json.loads(RECORDED.read_text()), json.loads(BY_HAND.read_text())))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="WHEEL", help="record litellm's data anew from its wheel")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; 1 if the table is not what the inputs make"
    )
    options = parser.parse_args()
    if options.record:
        found = record(options.record)
        rows = {
            p: "{\n" + ",\n".join(f"   {json.dumps(n)}: {json.dumps(e)}" for n, e in m.items()) + "\n  }"
            for p, m in found.pop("models").items()
        }
        head = json.dumps(found, indent=1)[1:-2]
        body = ",\n".join(f"  {json.dumps(p)}: {text}" for p, text in rows.items())
        RECORDED.write_text("{" + head + ',\n "models": {\n' + body + "\n }\n}\n")
    text = from_recorded()
    if options.check:
        same = TABLE.read_text() == text
        sys.stdout.write(f"{TABLE} is {'' if same else 'not '}what the recorded inputs make\n")
        return 0 if same else 1
    TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
