"""Text and data that cross a boundary: hides secrets, removes control characters, converts JSON data strictly.

Imports `types` alone. Start with `redaction.py` (secrets) and `json_data.py` (frozen JSON data).
"""

__all__ = [
    "codecs", "defaults", "json_data", "json_fit", "json_schema", "logs", "program_output", "python_types", "redaction",
    "sanitize", "shell_parse", "storable", "utf8",
]  # fmt: skip
