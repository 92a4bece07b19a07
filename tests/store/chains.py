"""What an exception could show to whoever prints it."""

__all__ = ["said_by"]


def said_by(error: BaseException) -> str:
    """Everything that an exception says and holds, with all of its chain."""
    chain: list[BaseException] = []
    following: list[BaseException | None] = [error]
    while following:
        one = following.pop()
        if one is not None and one not in chain:
            chain.append(one)
            following += [one.__cause__, one.__context__]
    return "\n".join(f"{one} {one!r} {vars(one)}" for one in chain)
