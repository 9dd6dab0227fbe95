"""The life cycles of an entity, one module each; `core.entity.Entity` composes them.

`medium_session` opens and closes the medium's session, `sources` connects to gate sources, `children` counts and limits child
entities, `checkpoints` stores files after each turn (`saved_files`: their states, and whose each change is).
May import everything below the entity. Start with `core/entity.py`.
"""

__all__ = ["checkpoints", "saved_files"]
