"""Import: adds looms, verifiers traces and ACP transcripts to a loom as records. It never executes anything that it
reads.

Ids are computed from the imported data, so a second import adds nothing. Commands use this folder.
Start with `import_file.py`, which finds the format of an input and imports it.
"""

__all__ = ["import_file"]
