"""The sandbox: what an entity's commands run in, or they do not run at all.

`policy` says what is visible and writable, `bubblewrap` turns that into arguments, `runner` runs one command in it.
Only the shell mediums and the commands that show the policy may import from here.
"""
