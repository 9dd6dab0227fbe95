"""The capability catalog: every gate, recipe, medium, provider and agent of a project, by name.

Start with `capabilities` (the catalog and its file). `build` makes a catalog for a project folder, `agents_md` reads the agents
of an ``AGENTS.md``, and `hamt` is the persistent map under a catalog.

These modules may import recipes, gates, mediums, `text`, and the tuples and errors of the tuple-space.
"""

__all__ = ["build", "capabilities"]
