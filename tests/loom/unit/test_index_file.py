"""The index's columns give back every place as it was, those of damaged looms too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.loom.records.tree import Place
from cantrip_acp.loom.stores.index_file import Packed, pack, unpack

_names = st.text(max_size=4)
_some = st.none() | _names


@given(
    st.dictionaries(
        _names,
        st.builds(
            Place,
            parent_id=_some,
            position=st.integers(0, 2**60),
            role=_names,
            entity_id=_names,
            cantrip_id=_names,
            cast_id=_some,
            continues=_some,
        ),
        max_size=8,
    )
)
def test_it_is_the_same_again(turns: dict[str, Place]) -> None:
    assert unpack(pack(turns)) == turns
    assert list(unpack(pack(turns))) == list(turns)


def test_what_is_no_such_columns() -> None:
    whole = pack(
        {"a": Place(None, 1, "call", "e", "c", None, None), "b": Place("a", 2, "crystal", "e", "c", "k", None)}
    )
    for broken in (
        Packed(whole.ids, [], whole.parents[:4], whole.positions, whole.shared),
        Packed(whole.ids, [], whole.parents[:3], whole.positions, whole.shared),
        Packed(whole.ids, [], b"\xff" * 8, whole.positions, whole.shared),
        Packed(whole.ids, [], whole.parents, whole.positions, {}),
        Packed(whole.ids[:1], [], whole.parents, whole.positions, whole.shared),
    ):
        with pytest.raises((LookupError, ValueError)):
            unpack(broken)
