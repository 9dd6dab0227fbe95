"""Stores: where a loom's records are kept. Only what is in here knows a file format or a database."""
