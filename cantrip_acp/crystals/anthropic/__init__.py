"""Anthropic: Claude models through the Messages API and the official SDK, imported with the first query.

These modules may import the contract, the catalog and the HTTP helpers. Start reading in `crystal`.
"""
