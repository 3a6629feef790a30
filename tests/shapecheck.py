"""The type checker that conftest puts on every function: beartype, with ints allowed where floats are."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
