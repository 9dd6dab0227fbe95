"""The way out of a sandbox: a proxy to the hosts of a list."""
