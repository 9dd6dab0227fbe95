"""Pydantic models of a recipe. The check of recipes and the published JSON Schema are both made from them.

The models check the structure and single values. `parse.cross_field` checks rules about several keys. Only `parse.validation`
and the schema import this package, because pydantic is slow to import. Start with `recipe.py`.
"""

__all__ = ["crystal", "field_types", "schema"]
