"""Errors of the tuple-space."""

from __future__ import annotations

from cantrip_acp.types.errors import CantripError, DefinitionError


class TupleError(DefinitionError):
    """A tuple, a pattern or a receipt is not valid. The text names the field and the rule."""


class NewerSchema(TupleError):
    """A tuple has a schema that this version does not know. A later version may."""


class SpaceError(CantripError):
    """The store of a tuple-space cannot be opened, read or written. The text names the store and what to do."""


class SpaceNotOpened(SpaceError, DefinitionError):
    """The address of a store is wrong, or nothing usable is there."""


class SpaceFull(SpaceError):
    """A lane has as many waiting tuples as it may hold. Try again after workers took some."""


class LeaseLost(SpaceError):
    """The lease of a claim ended, so another worker may have the tuple. Nothing of this claim was stored."""


class WaitTimeout(SpaceError):
    """No tuple matched the pattern in time."""
