"""Trace ids and OpenTelemetry spans.

`tracing` reads and makes trace ids and opens spans; `genai_spans` fills them by the conventions for generative AI.
The folder imports only shared data (`crystals.contract`, records of the loom) and `text`.
"""

__all__ = ["genai_spans", "tracing"]
