"""One server for all tests that only need it to be there."""

from collections.abc import Iterator

import pytest

from tests.tracking.remote import Remote, serving


@pytest.fixture(scope="session")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with serving(tmp_path_factory.mktemp("server")) as one:
        yield one
