"""A place in each kind of store; and scripts stand for models, so that what they say is a sample."""

import pytest

from cantrip_acp import ScriptedCrystal
from tests.support.fixtures.loom import kept, place, postgres, shared, small_disk  # noqa: F401


@pytest.fixture(autouse=True)
def scripts_are_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedCrystal, "samples", True)
