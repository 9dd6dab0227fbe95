"""Servers that speak Chat Completions: presets by name, any address, and those found on this machine."""
