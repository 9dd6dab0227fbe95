"""Tool calls in text, for models and servers that take no tool definitions."""
