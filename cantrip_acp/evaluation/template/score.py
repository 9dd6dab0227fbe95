"""How good an answer is, from 0 to 1."""


def score(thread, reference, answer):
    """Full marks for a short answer, half of them for a long one.

    `thread` has the turns. `intent`, `reference` (the expected answer), `answer` and `workspace` (the folder that the entity
    left) are given to parameters with these names. Returns a number, or a number and a note.
    """
    words = len(str(answer).split())
    return (1.0, None) if words <= 12 else (0.5, f"{words} words")
