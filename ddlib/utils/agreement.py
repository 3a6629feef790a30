"""Agreement of the methods of a class: closed forms, and the methods that they are forms of."""

from collections.abc import Sequence


def holds(cls: type, name: str, *sources: str) -> bool:
    """Return whether a member of a class, such as a closed form, agrees with its methods.

    It was written for the ``sources`` of the class that defines it, so it does not hold for a
    subclass that overrides one of them alone. Where that class has none of its own, or abstract
    ones, the member follows from those of every subclass.
    """
    definer = _definer(cls, name)
    for source in sources:
        known = getattr(definer, source, None)
        own = known is not None and not _is_abstract(known)
        if own and getattr(cls, source) is not known:
            return False
    return True


def check_agreement(cls: type, source: str, *names: str) -> None:
    """Raise TypeError if a class overrides the method ``source`` and inherits members that do not
    agree with it.

    Args:
        cls: the class.
        source: name of the method.
        names: names of members that follow from it.
    """
    having = [each for each in cls.__mro__ if source in vars(each)]
    base = having[-1]
    written = [each for each in having if not _is_abstract(vars(each)[source])]
    stale = [
        name
        for name in names
        if not holds(cls, name, source) or _is_between(_definer(cls, name), base, written)
    ]
    if stale:
        listed = ", ".join(stale)
        definers = " and ".join({_definer(cls, name).__name__: None for name in stale})
        raise TypeError(
            f"{cls.__name__} overrides {source} and inherits {listed} from {definers}, written for "
            f"another {source}: override {listed} too, or derive {cls.__name__} from "
            f"{base.__name__}"
        )


def _is_between(definer: type, base: type, written: Sequence[type]) -> bool:
    """Return whether a class is between the base and the last of several classes with a source.

    It has none of its own, and its members are for the earlier one.
    """
    below = definer is not base and issubclass(definer, base)
    return len(written) > 1 and below and not issubclass(definer, written[0])


def _is_abstract(method: object) -> bool:
    return bool(getattr(method, "__isabstractmethod__", False))


def _definer(cls: type, name: str) -> type:
    """Return the class that defines a member."""
    return next(base for base in cls.__mro__ if name in vars(base))
