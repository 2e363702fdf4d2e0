"""Fixtures of `make test-cluster`: real servers on loopback, in separate folders."""

from collections.abc import Iterator

import pytest

from tests.cluster.postgres import Postgres, Server, postgres, server

#: Time limit of a test in seconds; no test should reach it.
LIMIT = 1500


def pytest_itemcollected(item: pytest.Item) -> None:
    """Raise the time limit: servers and drivers start with each test."""
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
