"""What a value of another package leaves out, it has from the base class."""

from __future__ import annotations

from cantrip_acp.crystals.contract import CrystalBase
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.text.defaults import complete


class Foreign:
    patient = True

    def __init__(self) -> None:
        self.remarks = ("slow",)
        self.passed = 0

    def skip(self, queries: int) -> None:
        self.passed = queries


async def test_a_class_of_another_package_keeps_what_it_has_and_gets_the_rest() -> None:
    foreign = Foreign()
    whole = complete(foreign, CrystalBase)
    assert (whole.patient, whole.remarks, whole.samples, whole.priced) == (True, ("slow",), True, None)
    whole.skip(3)
    assert foreign.passed == 3
    await whole.aclose()


def test_what_inherits_the_base_is_itself() -> None:
    crystal = ScriptedCrystal()
    assert complete(crystal, CrystalBase) is crystal
