"""Gives the tests to the workers of xdist, as ``--dist loadgroup`` does: the slow ones first, so that no worker is left with one at
the end. And goes on after a worker has crashed.

xdist gives what a crashed worker had done, as empty units of work, and the test that crashed it to others. A worker that gets
an empty unit, or one single test, waits for ever: it begins a test only when it knows the one after it.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling, Scheduling
from xdist.workermanage import WorkerController


class CrashProofScheduling(LoadGroupScheduling):
    def schedule(self) -> None:
        super().schedule()
        # A worker that replaces another has got one unit.
        for node in self.nodes:
            self._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Returns the test that the worker ran when it crashed, if it did. That one is not run again."""
        left = {
            scope: {test: False for test, done in unit.items() if not done}
            for scope, unit in self.assigned_work.pop(node).items()
        }
        crashed = next((test for unit in left.values() for test in unit), None)
        for scope, unit in left.items():
            unit.pop(crashed or "", None)
            if unit:
                self.workqueue[scope] = unit
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    if config.getoption("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False  # it would undo the order of `pytest_collection_modifyitems`
    return CrashProofScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by how long the tests will take that one worker has to run after each other."""
    seconds: dict[str, float] = defaultdict(float)

    def group(item: pytest.Item) -> str:
        marker = item.get_closest_marker("xdist_group")
        return str(marker.args[0] if marker.args else marker.kwargs["name"]) if marker else item.nodeid

    for item in items:
        seconds[group(item)] += 0.5 if item.get_closest_marker("slow") is None else 10
    items.sort(key=lambda item: -seconds[group(item)])
