"""What semantic tokens can be: announced at the start, used where they are made (`coloring`)."""

TYPES = ("keyword", "property", "parameter", "function", "enumMember", "namespace", "class", "variable")
MODIFIERS = ("declaration", "deprecated")
