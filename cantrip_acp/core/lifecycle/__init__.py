"""The life cycles of an entity, one module each; `core.entity.Entity` composes them.

`sources` connects to gate sources, `checkpoints` stores the workspace's files after each turn.
May import everything below the entity. Start with `core/entity.py`.
"""
