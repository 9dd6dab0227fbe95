"""The loom: the append-only tree of every turn (chapter 6). Records, the tree over them, and the stores that keep them."""
