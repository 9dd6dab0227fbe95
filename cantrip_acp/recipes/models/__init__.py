"""The shape of a recipe, as pydantic models: the one source of what the loader takes and of the published JSON Schema.

Structure and single values are checked here; rules that join several keys (a done gate, a turn ward) stand in
`recipes.rules`. A file a part of a recipe. Imported by the loader and the schema alone, since pydantic is slow to import.
"""
