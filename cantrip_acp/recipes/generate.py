"""``python -m cantrip_acp.recipes.generate``: writes the generated files of the package.

It writes the JSON Schema of recipes (``cantrip.schema.json``) and then the cache of the built-in recipes
(``compiled.json``), whose keys depend on the schema. A test fails if the files are out of date.
"""

from __future__ import annotations

import json
import sys

from cantrip_acp.recipes import cache, recipe
from cantrip_acp.recipes.models import schema


def compiled_text() -> str:
    shipped = {}
    for path in recipe.recipe_files(recipe.BUILT_IN):
        raw = path.read_bytes()
        shipped[cache.digest("recipe", raw)] = cache.parse_and_check("recipe", raw, path, path.name)
    return json.dumps(shipped, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> int:
    """Write both files. Returns the exit status."""
    cache.SCHEMA.write_text(schema.text(), encoding="utf-8")
    cache._schema_hash.cache_clear()
    cache.SHIPPED.write_text(compiled_text(), encoding="utf-8")
    sys.stderr.write(f"wrote {cache.SCHEMA} and {cache.SHIPPED}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
