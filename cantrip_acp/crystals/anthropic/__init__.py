"""Claude by Anthropic's Messages API, through the official SDK, which is imported with the first query."""
