"""Text and data that cross a boundary: hides secrets, removes control characters, converts JSON data strictly.

Imports `types` alone. Start with `redaction.py` (secrets) and `json_data.py` (frozen JSON data).
"""
