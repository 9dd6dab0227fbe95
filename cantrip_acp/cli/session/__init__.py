"""What `cast`, `repl` and `client` share: setup, the event loop's thread, resuming and permission questions."""
