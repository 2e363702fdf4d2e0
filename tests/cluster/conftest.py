"""For `make test-cluster`: real servers on loopback, in folders of their own."""

import pytest

#: Seconds for a test, of which none should end by them.
LIMIT = 1500


def pytest_itemcollected(item: pytest.Item) -> None:
    """Servers and drivers start with each test: on a busy machine that is many minutes."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(LIMIT))
