"""Import: looms, verifiers traces and ACP transcripts, taken into a loom as records. Nothing that is read is ever executed.

Ids are made of what is imported, so that importing it twice adds nothing.
"""
