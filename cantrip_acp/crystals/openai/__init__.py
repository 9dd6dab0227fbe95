"""OpenAI: the Responses API and Chat Completions through the official SDK. The SDK is imported at the first query.

These modules may import the core, the catalog, `text_tools` and the shared modules of `crystals`. Start reading in
`responses_api` (OpenAI's own models) and `chat_completions` (most other servers).
"""

__all__ = ["chat_messages", "chat_stream", "openrouter", "responses_api", "tool_names"]
