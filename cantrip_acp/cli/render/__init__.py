"""What commands print: terminal and table, casts and sessions, tool calls and child entities."""
