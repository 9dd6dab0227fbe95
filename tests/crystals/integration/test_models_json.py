"""The table of models that ships is what its script makes from the recorded inputs, without a network."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tools" / "models_json.py"

pytestmark = pytest.mark.skipif(
    not SCRIPT.is_file(), reason="the script that makes models.json is not part of this copy"
)


def test_the_table_is_what_the_recorded_inputs_make() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), f"run python tools/models_json.py: {done.stdout}"


def test_it_says_where_everything_comes_from() -> None:
    data = json.loads((ROOT / "cantrip_acp/crystals/catalog/models.json").read_text())
    recorded = json.loads((ROOT / "tools/models/litellm.json").read_text())
    by_hand = json.loads((ROOT / "tools/models/by_hand.json").read_text())
    assert data["sources"]["litellm"]["version"] == recorded["version"]
    assert data["sources"]["litellm"]["recorded"] == recorded["recorded"]
    assert data["sources"]["hand"]["read"] == by_hand["date"]
    for provider, models in data["models"].items():
        for name, entry in models.items():
            for field in set(entry) - {"from"}:
                held = entry[field] == by_hand["models"][provider].get(name, {}).get(field)
                assert held or "litellm" in entry["from"], (provider, name, field)
