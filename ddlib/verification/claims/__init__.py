"""Claims that ``dd.verify`` checks, by the kind of object."""
