"""Memory: context for an entity's intents, from the repository's own documents and from earlier casts in the same
folder.

Its classes are contributors (`context.Contributor`), set up by a recipe's ``memory``; only `recipes` imports this
folder. Their blocks are content, never authority: each names its source, has a size limit, and is in the loom as a
context record. Start with `project_docs.py`.
"""
