"""Reading a loom: threads, lists with filters, differences and statistics."""
