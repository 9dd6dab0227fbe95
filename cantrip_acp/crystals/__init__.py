"""Crystals: the models. There is one package for each provider, and all of them follow one contract.

Only a provider's own module may import its SDK, and only when the first query is made. All other code uses only
`contract`. These modules may import the core, `files` and `text`. Start reading in `contract`.
"""

__all__ = [
    "anthropic", "catalog", "contract", "embedded", "endpoint", "google", "health_check", "http_clients", "human",
    "keys", "local", "logprobs", "openai", "refused_media", "retry", "scripted", "text_tools",
]  # fmt: skip
