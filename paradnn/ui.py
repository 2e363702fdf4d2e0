"""`python -m paradnn.ui`: open the MLflow UI of the store, with links to prepared views.

`make ui` does the same; PORT=5001 selects another port.
"""

import os
import socket
import sys
from collections.abc import Iterator, Sequence

from paradnn.cli.parser import Parser
from paradnn.cli.program import program
from paradnn.core.errors import ConfigError, NoStoreError, StoreError
from paradnn.store.address import StoreAddress, address_of, migration_remedy, relocate_artifacts
from paradnn.store.client import client_of, store_errors
from paradnn.store.reader import open_reader
from paradnn.store.runs import Query
from paradnn.store.views import VIEWS, is_outdated, run_link, view_link, view_tags

#: Environment variables of MLflow's server. They disable jobs for traces and evaluations, which
#: ParaDnn does not use and which would start eight more processes.
_SETTINGS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def make_parser() -> Parser:
    """Return the parser of the command line of `paradnn ui`."""
    parser = Parser("python -m paradnn.ui", __doc__)
    parser.add_store()
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=5000, help="port to listen on (default: %(default)s)"
    )
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Create the views of the experiment, print their links, and start MLflow's server.

    The server replaces this process. If the store already has a server, none is started.

    Args:
        arguments: The words of the command line; None for those of this process.

    Returns:
        The exit code: 0, or 2 for invalid input.
    """
    given = make_parser().parse_args(arguments)
    address = address_of(given.store)
    is_served = address.is_server
    if not is_served:
        _require_database(address)
        _require_free_port(given.host, given.port)
    experiment_id = prepare_views(address, given.experiment)
    if is_served:
        server = address.public.rstrip("/")
    else:
        server = f"http://{given.host}:{given.port}"
    for line in _links(address, given.experiment, server, experiment_id):
        print(line)
    if not is_served:
        relocate_artifacts(address)
        print("starting the server takes about 20 s; Ctrl-C ends it", flush=True)
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "ui",
            "--host",
            given.host,
            "--port",
            str(given.port),
        ]
        os.execve(
            sys.executable,
            [*command, "--backend-store-uri", address.uri],
            {**_SETTINGS, **os.environ},
        )
    return 0


def prepare_views(address: StoreAddress, experiment: str) -> str:
    """Create or update the prepared views of an experiment in the MLflow UI.

    Args:
        address: The tracking store.
        experiment: Name of the MLflow experiment.

    Returns:
        The id of the experiment.

    Raises:
        StoreError: If the experiment does not exist.
    """
    with store_errors(f"cannot open {address.public}"):
        client = client_of(address)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            remedy = "measure first, with python -m paradnn.train"
            raise StoreError(f"{address.public}: has no experiment {experiment}; {remedy}")
        for key, value in view_tags().items():
            if is_outdated(found.tags.get(key), value):
                client.set_experiment_tag(found.experiment_id, key, value)
    return str(found.experiment_id)


def _links(
    address: StoreAddress, experiment: str, server: str, experiment_id: str
) -> Iterator[str]:
    """Yield lines of text with the links to the views and to the newest sweep.

    Args:
        address: The tracking store.
        experiment: Name of the MLflow experiment.
        server: Address of MLflow's server.
        experiment_id: Id of the experiment.
    """
    for key, view in VIEWS.items():
        yield f"{view.content}:"
        yield f"  {view_link(server, experiment_id, key)}"
        if view.charts:
            yield f"  {view_link(server, experiment_id, key, charts=True)} (charts)"
    query = Query((experiment,), tags={"kind": ("sweep",)}, unfinished=True, newest=1)
    for row in open_reader(address).read(query):
        yield f"the newest sweep, {row.run.run_name}:"
        yield f"  {run_link(server, experiment_id, row.run.run_id)}"


def _require_database(address: StoreAddress) -> None:
    if address.is_parquet:
        raise StoreError(f"{address.public} is read-only: analyze it with python -m analysis")
    if address.is_bundle:
        raise StoreError(
            f"{address.public} is read-only: record it in a store with python -m analysis import"
        )
    if not address.is_sql or (address.database and not address.database.is_file()):
        remedy = migration_remedy(address) or (
            "measure first, with python -m paradnn.train, or give --store"
        )
        raise NoStoreError(f"no tracking store at {address.public}: {remedy}")


def _require_free_port(host: str, port: int) -> None:
    try:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except (OSError, OverflowError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        other = port % 65535 + 1
        remedy = (
            f"choose another port: make ui PORT={other}, or python -m paradnn.ui --port {other}"
        )
        raise ConfigError("--port", port, f"is not available ({problem})", remedy) from None


if __name__ == "__main__":
    sys.exit(main())
