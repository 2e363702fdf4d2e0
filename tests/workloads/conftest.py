"""Fixtures: a server of the OpenAI protocol that the tests of a module share."""

from collections.abc import Iterator

import pytest

from tests.workloads.openai_server import OpenAIServer, serving


@pytest.fixture(scope="module")
def shared_server() -> Iterator[OpenAIServer]:
    with serving(OpenAIServer()) as server:
        yield server


@pytest.fixture
def server(shared_server: OpenAIServer) -> OpenAIServer:
    shared_server.forget()
    return shared_server
