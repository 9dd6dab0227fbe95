"""The tests of `tests/recipes/unit/test_finding.py` that start processes."""

import subprocess
import sys
from pathlib import Path

from tests.support.recipe_writer import write


def test_the_default_loads_neither_parser_nor_models(tmp_path: Path) -> None:
    write(tmp_path, "[]", "s.yaml")
    script = (
        "import os, sys; from pathlib import Path; os.environ['CANTRIP_CRYSTAL'] = 'scripted:s.yaml';"
        "from cantrip_acp.recipes import load_for_session;"
        "load_for_session(None, Path('.').absolute(), Path('state').absolute(), trusted=False);"
        "print(*sys.modules)"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    # The second time the script too is known.
    assert not {"pydantic", "ruamel.yaml", "tomllib", "click", "rich", "platformdirs"} & set(done.stdout.split())
