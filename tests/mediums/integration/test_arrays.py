"""numpy and pandas in a virtual environment that the circle chose: arrays in cells, as values, through gates, in snapshots."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cantrip_acp.mediums.code.medium import CodeMedium

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def scientific(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with numpy and pandas."""
    folder = tmp_path_factory.mktemp("scientific")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile", "numpy", "pandas"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode != 0:
        pytest.skip(f"numpy and pandas cannot be installed here: {done.stderr[-500:]}")
    return folder


@pytest.fixture
async def arrays(make, scientific: Path):
    python = await make(medium=CodeMedium(python=str(scientific)))
    await python.value("import numpy as np")
    return python


async def test_arrays_live_and_go_through_gates(arrays) -> None:
    assert await arrays.value("a = np.arange(6).reshape(2, 3)\na.sum()") == "np.int64(15)"
    assert await arrays.value("a *= 2\necho(text=a)") == "[[0, 2, 4], [6, 8, 10]]"
    await arrays("done({'m': a, 'f': np.float64(0.5), 'i': np.int8(3)})")
    assert arrays.turn.answers == [{"m": [[0, 2, 4], [6, 8, 10]], "f": 0.5, "i": 3}]


async def test_large_values_say_what_they_are(arrays) -> None:
    shown = await arrays.value("np.zeros((1000, 1000), dtype='float32')") or ""
    assert shown.startswith("ndarray of shape (1000, 1000), float32:\narray([[0., 0., 0., ...,")
    assert len(shown) < 1000
    assert await arrays.value("np.arange(3)") == "array([0, 1, 2])"
    assert len(await arrays.value("np.array(['x' * 5000] * 3)") or "") < 2200
    await arrays.value("import pandas as pd\ndf = pd.DataFrame({'n': range(100_000), 't': ['ü'] * 100_000})")
    shown = await arrays.value("df") or ""
    assert shown.startswith("DataFrame of shape (100000, 2), n int64, t ")
    assert "[100000 rows x 2 columns]" in shown
    assert (await arrays.value("df.n") or "").startswith("Series of shape (100000,), int64:\n0 ")
    assert len(await arrays.value("pd.DataFrame(np.zeros((100, 300)))") or "") < 3500
    assert (await arrays.value("df.head(2)") or "").splitlines()[0].split() == ["n", "t"]


async def test_what_only_looks_like_an_array(arrays) -> None:
    for members in ("shape = (9999, 9999)", "shape = (9999, 'x'); dtype = 1", "shape = property(lambda self: 1 / 0)"):
        shown = await arrays.value(f"class Odd:\n    {members}\n    def __repr__(self): return 'odd'\nOdd()")
        assert (shown or "").endswith("odd")


async def test_snapshots_keep_what_is_shared(arrays) -> None:
    await arrays.value(
        "import pandas as pd\na = np.arange(12.0).reshape(3, 4)\nrow, back, same = a[1], a[::-1, 1:3], {'a': a}\n"
        "fortran = np.asfortranarray(a)\nframe = pd.DataFrame({'x': [1, 2], 't': ['a', None]})\n"
        "names = np.array(['a', 'b'], dtype=object)"
    )
    taken = await arrays.session.snapshot()
    assert taken.missing == ()
    await arrays.session.restore(taken)
    assert (
        await arrays.value("same['a'] is a, float(a.sum()), int(frame.x.sum()), list(names)")
        == "(True, 66.0, 3, ['a', 'b'])"
    )
    assert (
        await arrays.value("a[1, 1] = -1\nfloat(row[1]), float(back[1, 0]), float(fortran[1, 1])")
        == "(-1.0, -1.0, 5.0)"
    )
    assert await arrays.value("back.tolist()") == "[[9.0, 10.0], [-1.0, 6.0], [1.0, 2.0]]"


async def test_a_megabyte_of_numbers_is_kept_once(arrays) -> None:
    await arrays.value("big = np.random.default_rng(0).random((1000, 1000))")
    first = await arrays.session.snapshot()
    await arrays.value("n = 1")
    second = await arrays.session.snapshot()
    assert first.size > 8_000_000
    assert second.written < 200_000
