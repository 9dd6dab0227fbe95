"""The commands that people type; a file a command. Each is imported only when it is called."""
