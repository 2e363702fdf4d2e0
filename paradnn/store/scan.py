"""Stream a part of a SQLite store's tables to standard output as Arrow batches.

This is a separate program, run by its path. ADBC reads rows in compiled code, several times faster
than Python creates tuples. ADBC contains another SQLite library. Two SQLite libraries must not be
used in one process: if one closes a file, the other loses its locks on the file.
"""

import json
import sys

import adbc_driver_sqlite.dbapi as adbc
import pyarrow as pa

TEXT = pa.binary()
NUMBER = pa.float64()
CODED = pa.dictionary(pa.int32(), pa.binary())


def main() -> None:
    """Read every n-th part of the tables that the command line lists.

    The argument is a JSON array:

    - the URI of the database;
    - the number of rows per part;
    - the number of this process, and the number n of processes;
    - per table: a statement that gives run, key and value, the first and last rowid, and whether
      the values are numbers.

    The output has one stream of batches per table. Texts are dictionary-encoded.
    """
    uri, rows, process, processes, tables = json.loads(sys.argv[1])
    with adbc.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("PRAGMA query_only = ON")
        cursor.execute("PRAGMA busy_timeout = 60000")
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        for statement, first_row, last_row, has_numbers in tables:
            fields = {"run": CODED, "key": CODED, "value": CODED}
            if has_numbers:
                fields["value"] = NUMBER
            with pa.ipc.new_stream(sys.stdout.buffer, pa.schema(fields)) as stream:
                for first in range(first_row + process * rows, last_row + 1, processes * rows):
                    last = min(first + rows - 1, last_row)
                    cursor.execute(f"{statement} AND rowid BETWEEN {first} AND {last}")
                    # Read the whole result before sending it, so that a slow consumer never makes
                    # a writer of the store wait.
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
