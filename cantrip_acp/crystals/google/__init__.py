"""Google: Gemini models through Google's API and its official SDK. The SDK is imported at the first query.

These modules may import the core, the catalog, the shared modules of `crystals` and `openai.tool_names`. Start reading
in `crystal`.
"""

__all__ = ["crystal", "messages"]
