"""The gate ``search``: a regular expression over files, by ripgrep or without it."""
