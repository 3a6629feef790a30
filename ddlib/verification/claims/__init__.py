"""Claims of ``dd.verify``, by the kind of object."""
