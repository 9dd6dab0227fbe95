from tests.support.fixtures.acp import folder, recipe, start, start_process  # noqa: F401
