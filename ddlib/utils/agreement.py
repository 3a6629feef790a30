"""Agreement of the methods of a class: closed forms, and the methods that they are forms of."""


def holds(cls: type, name: str, *sources: str) -> bool:
    """Return whether a member of a class, such as a closed form, agrees with its methods.

    It was written for the ``sources`` of the class that defines it, so it does not hold for a
    subclass that overrides one of them alone. Where that class has none of its own, or abstract
    ones, the member follows from those of every subclass.
    """
    definer = next(base for base in cls.__mro__ if name in vars(base))
    for source in sources:
        known = getattr(definer, source, None)
        own = known is not None and not getattr(known, "__isabstractmethod__", False)
        if own and getattr(cls, source) is not known:
            return False
    return True
