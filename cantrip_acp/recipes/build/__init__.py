"""From checked data to a `Cantrip`: crystal, gates, circle and where casts are recorded."""
