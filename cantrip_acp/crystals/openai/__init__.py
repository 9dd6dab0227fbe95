"""OpenAI: the Responses API and Chat Completions through the official SDK, imported with the first query.

These modules may import the contract, the catalog and the HTTP helpers. Start reading in `responses_api` (OpenAI's own
models) and `chat_completions` (most other servers).
"""
