"""Checkpoints: the files of a workspace after each turn that changed some, kept in the state folder.

`store` is the database of one workspace (contents, checkpoints, marks). `watcher` knows the present files and finds what
changed, without git. `restore` plans and does a restore, with a three-way merge (`merge`) where the user changed a file
too. Imports only `db/`, `files/` and `types/`. Start reading with `store`; `core/lifecycle/checkpoints.py` uses it all.
"""

__all__ = ["history", "ownership", "restore", "store", "watcher"]
