"""`python -m paradnn.ui`: the MLflow UI on the tracking store, at http://127.0.0.1:5000.

`make ui` is the same; PORT=5001 chooses another port.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys

from paradnn.errors import NoStoreError, ParadnnError
from paradnn.store.address import StoreAddress, address_of
from paradnn.store.moved import settle

__all__ = ["main"]


def main() -> int:
    """Become `mlflow ui`; the exit code where there is no store, or no free port."""
    parser = argparse.ArgumentParser(prog="python -m paradnn.ui", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument("--port", type=int, default=5000, help="default: %(default)s")
    parser.add_argument("--store", help="tracking URI; default: MLFLOW_TRACKING_URI, else sqlite:///mlruns/mlflow.db")
    given = parser.parse_args()
    try:
        address = _served(address_of(given.store))
        _require_free(given.host, given.port)
    except ParadnnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    settle(address)
    where = ["--host", given.host, "--port", str(given.port), "--backend-store-uri", address.uri]
    return os.execv(sys.executable, [sys.executable, "-m", "mlflow", "ui", *where])


def _served(address: StoreAddress) -> StoreAddress:
    if address.is_server:
        raise ParadnnError(f"{address.public} is a server, which has the UI itself: open it in a browser")
    if not address.is_sql or (address.database and not address.database.is_file()):
        raise NoStoreError(
            f"no tracking store at {address.public}: measure first, with python -m paradnn.train, or give --store"
        )
    return address


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            reason, other = getattr(error, "strerror", None) or str(error), port % 65535 + 1
            remedy = f"name another, as in make ui PORT={other}, or python -m paradnn.ui --port {other}"
            raise ParadnnError(f"port {port} of {host} cannot be used ({reason}): {remedy}") from None


if __name__ == "__main__":
    sys.exit(main())
