"""A share of an SQLite store's tables as Arrow batches on standard output: a program of its own,
run by its path.

ADBC reads rows in compiled code, several times as fast as Python makes tuples of them. Its SQLite
is not Python's, and two must not share a process: when one of them closes a file, all locks of the
other on it are gone.
"""

import json
import sys

import adbc_driver_sqlite.dbapi as adbc
import pyarrow as pa

TEXT = pa.binary()
NUMBER = pa.float64()
CODED = pa.dictionary(pa.int32(), pa.binary())


def main() -> None:
    """The argument: JSON of the database's URI, the rows of a part, which share of how many is
    read, and of each table a statement that gives run, key and value, its first and last rowid, and
    whether values are numbers.

    Each table gives a stream of batches, whose texts are codes.
    """
    uri, rows, share, shares, tables = json.loads(sys.argv[1])
    with adbc.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("PRAGMA query_only = ON")
        cursor.execute("PRAGMA busy_timeout = 60000")
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        for statement, least, most, has_numbers in tables:
            fields = {"run": CODED, "key": CODED, "value": NUMBER if has_numbers else CODED}
            with pa.ipc.new_stream(sys.stdout.buffer, pa.schema(fields)) as stream:
                for first in range(least + share * rows, most + 1, shares * rows):
                    cursor.execute(
                        f"{statement} AND rowid BETWEEN {first} AND {min(first + rows - 1, most)}"
                    )
                    # Read to its end before it is sent: who writes the store waits for no reader of
                    # this.
                    for batch in filter(len, cursor.fetch_arrow_table().to_batches()):
                        found = {
                            name: column.cast(NUMBER)
                            if kind == NUMBER
                            else column.cast(TEXT).dictionary_encode()
                            for (name, kind), column in zip(
                                fields.items(), batch.columns, strict=True
                            )
                        }
                        stream.write_batch(pa.record_batch(found))


if __name__ == "__main__":
    main()
