"""Stream a share of an SQLite store's tables to standard output as Arrow batches.

This is a separate program, run by its path. ADBC reads rows in compiled code, several times faster
than Python creates tuples. ADBC has its own SQLite library, and two SQLite libraries must not
share a process. When one of them closes a file, all locks of the other on that file are lost.
"""

import json
import sys

import adbc_driver_sqlite.dbapi as adbc
import pyarrow as pa

TEXT = pa.binary()
NUMBER = pa.float64()
CODED = pa.dictionary(pa.int32(), pa.binary())


def main() -> None:
    """Read the share that the command line describes.

    The argument is a JSON array:

    - the URI of the database;
    - the number of rows per part;
    - the index of the share, and the number of shares;
    - per table: a statement that gives run, key and value, the first and last rowid, and whether
      the values are numbers.

    The output has one stream of batches per table; texts are dictionary-encoded.
    """
    uri, rows, share, shares, tables = json.loads(sys.argv[1])
    with adbc.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("PRAGMA query_only = ON")
        cursor.execute("PRAGMA busy_timeout = 60000")
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        for statement, least, most, has_numbers in tables:
            fields = {"run": CODED, "key": CODED, "value": CODED}
            if has_numbers:
                fields["value"] = NUMBER
            with pa.ipc.new_stream(sys.stdout.buffer, pa.schema(fields)) as stream:
                for first in range(least + share * rows, most + 1, shares * rows):
                    cursor.execute(
                        f"{statement} AND rowid BETWEEN {first} AND {min(first + rows - 1, most)}"
                    )
                    # Read the whole result before sending it, so that a slow consumer never keeps
                    # a writer of the store waiting.
                    for batch in filter(len, cursor.fetch_arrow_table().to_batches()):
                        columns = map(_convert, batch.columns, fields.values())
                        names = list(fields)
                        stream.write_batch(pa.record_batch(list(columns), names=names))


def _convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == NUMBER:
        return column.cast(NUMBER)
    return column.cast(TEXT).dictionary_encode()


if __name__ == "__main__":
    main()
