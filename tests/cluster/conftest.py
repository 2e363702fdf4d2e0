"""For `make test-cluster`: real servers on loopback, in folders of their own."""

from collections.abc import Iterator

import pytest

from tests.cluster.postgres import Postgres, Server, postgres, server

#: Seconds for a test, of which none should end by them.
LIMIT = 1500


def pytest_itemcollected(item: pytest.Item) -> None:
    """Servers and drivers start with each test: on a busy machine that is many minutes."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(LIMIT))


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tracking(
    database: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, str]]:
    """A server that no test kills, and its database."""
    name = database.new_database()
    with server(database.uri(name), tmp_path_factory.mktemp("tracking")) as one:
        yield one, name
