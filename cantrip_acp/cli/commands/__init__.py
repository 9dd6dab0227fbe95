"""The commands that people type, a module a command. Each is imported only when it is called."""
