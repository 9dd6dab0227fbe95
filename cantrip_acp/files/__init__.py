"""Paths and files of the host: the user's folders, protected and hidden paths, temporary folders and
scratch copies.

Imports `types` and `text` alone. Start with `paths.py` (where state and settings are).
"""

__all__ = [
    "descriptors", "digests", "disk_limit", "env_files", "folder", "git_index", "guarded", "hidden_paths", "ignore_files",
    "installation", "paths", "protected_paths", "quarantine", "scratch_copy", "temporary", "toml_file", "tracked_files",
]  # fmt: skip
