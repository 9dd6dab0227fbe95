"""Gates on files: read, write, edit and list, below a root that nothing leaves."""
