"""What a query of tree-sitter captures: `python -m tests.e2e.editors.syntax_queries LANGUAGE QUERY TEXT` prints JSON.

A process of its own: the binding has been seen to crash when it lets go of a query, so it never does.
"""

import json
import os
import sys
from pathlib import Path

import tree_sitter
import tree_sitter_json
import tree_sitter_yaml

GRAMMARS = {"yaml": tree_sitter_yaml, "json": tree_sitter_json}


def main(grammar: str, query: str, text: str) -> None:
    language = tree_sitter.Language(GRAMMARS[grammar].language())
    try:
        asked = tree_sitter.Query(language, Path(query).read_text())
    except tree_sitter.QueryError as error:
        said: dict[str, object] = {"error": str(error)}
    else:
        tree = tree_sitter.Parser(language).parse(Path(text).read_bytes())
        found = tree_sitter.QueryCursor(asked).captures(tree.root_node)
        said = {name: [(node.text or b"").decode() for node in nodes] for name, nodes in found.items()}
    sys.stdout.write(json.dumps(said))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
