"""Tables: rows of columns of any types, each a field with its own alphabet and noise."""
