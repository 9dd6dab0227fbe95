"""File gates: read, write, edit and list files below a root folder.

They may import the gate contract and the confined path handling of `gates/`. Start with `read_file.py` and
`write_file.py`.
"""

__all__ = ["edit_file", "file_content", "list_dir", "read_file", "write_file"]
