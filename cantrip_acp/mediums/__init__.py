"""Mediums: what an entity works in. One contract, one file a medium; a circle has exactly one (§4.1)."""
