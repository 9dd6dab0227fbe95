"""What ``workspace/executeCommand`` can do, so that it works in every client.

`registry` lists the commands, `given` reads their arguments, `running` runs them beside the messages, `work` is one run: its
progress and its end. A module a family of commands, imported when one of them is asked for.
"""
