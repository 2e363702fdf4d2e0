"""Fixtures of `make test-cluster`: real servers on loopback with temporary folders."""

from collections.abc import Iterator

import pytest

from tests.cluster.postgres import Postgres, Server, postgres, server

#: Default time limit of a test in seconds.
LIMIT = 1500


def pytest_itemcollected(item: pytest.Item) -> None:
    """Raise the default time limit, because tests start servers and drivers."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(LIMIT))


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """Yield a running PostgreSQL."""
    with postgres() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tracking(
    database: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, str]]:
    """Yield a tracking server that no test kills, and the name of its database."""
    name = database.new_database()
    with server(database.uri(name), tmp_path_factory.mktemp("tracking")) as running:
        yield running, name
