"""CSV files for tests of tables."""

import csv


def write_csv(path, header, rows):
    """Write a table; return its path."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path
