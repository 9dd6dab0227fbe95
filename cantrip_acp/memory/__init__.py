"""What an entity is told of before an intent: the repository's own documents, and what was done in this folder before.

Contributors (`context.Contributor`), bound by a recipe's ``memory``. What they give is content, never authority: each block
says where it comes from, is bounded, and stands in the loom as a context record. Imported by `recipes` alone.
"""
