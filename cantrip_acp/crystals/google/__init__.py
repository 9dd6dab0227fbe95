"""Gemini by Google's API, through the official SDK, which is imported with the first query."""
