"""The commands of ``workspace/executeCommand``, so that they work in every client.
`registry` lists the commands, `arguments` reads their arguments, `runner` runs them, and `command_run` is one run: its
progress and its end. Each family of commands has a module, imported when one of its commands is called.
"""
