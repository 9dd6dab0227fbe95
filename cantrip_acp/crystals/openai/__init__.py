"""OpenAI's Responses API and Chat Completions, through the official SDK, which is imported with the first query."""
