"""Scripts for `cantrip client --script`: parsed, played and judged."""
