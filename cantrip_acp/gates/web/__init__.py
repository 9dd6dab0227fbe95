"""The gate ``fetch``: the text at a public address of the web."""
