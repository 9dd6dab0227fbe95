"""Google: Gemini models through Google's API and its official SDK, imported with the first query.

These modules may import the contract, the catalog and the HTTP helpers. Start reading in `crystal`.
"""
