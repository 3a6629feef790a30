"""Agreement of the rows of a run with the lengths of prepared sequences."""

from recipes.data.prepared import Prepared


def check_lengths(data: Prepared, length: int, packed: bool, place: str = "data") -> None:
    """Refuse rows that sequences of symbols without padding do not fit.

    Args:
        data: the prepared data.
        length: tokens of a row.
        packed: whether rows hold several sequences.
        place: place of the options in the recipe, for messages.

    Raises:
        ValueError: rows longer than sequences of one length, or shorter where those have a shape;
            sequences of different lengths in rows that are not packed; rows shorter than a sequence
            with given tokens.
    """
    if data.train.has_given:
        longest = int(max(split.lengths.max() for split in (data.train, data.validation)))
        if length < longest:
            raise ValueError(
                f"{place}.length={length}: {data.folder} holds sequences of up to {longest} "
                "tokens, some of them given, which are not cut, as a part might lack its context: "
                f"must be at least {longest}, or leave out the longest when they are prepared "
                "(--longest)"
            )
    if data.layout is None or data.layout.ends:
        return
    if data.ragged:
        if not packed:
            lengths = list(data.layout.lengths or (0,))
            raise ValueError(
                f"{place}.packed=False: {data.folder} holds sequences of {min(lengths)} to "
                f"{max(lengths)} symbols "
                f"without padding, so a row must contain several: pass --{place}.packed, or "
                "prepare it again with "
                "--ends, which adds an end and padding"
            )
        return
    size = data.layout.fixed or length
    if length > size:
        raise ValueError(
            f"{place}.length={length}: {data.folder} holds sequences of {size} symbols without "
            "padding, must be at "
            f"most {size}"
        )
    if length < size and data.shape:
        shape = " x ".join(map(str, data.shape))
        raise ValueError(
            f"{place}.length={length}: {data.folder} holds sequences of shape {shape}, which "
            "cannot be cut: must be "
            f"{size}"
        )
