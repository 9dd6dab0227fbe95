"""Rewards the answer to "How many apples are in the store?": 1 for the right number, less for what is on the way to it."""

from cantrip_acp.loom.query.thread import Thread


def score(thread: Thread, reference: int) -> float:
    # The thread begins with the demonstrations, which asked for other items.
    own = [turn for turn in thread.acted if turn.cast_id == thread.leaf.cast_id]
    asked = [record.result for turn in own for record in turn.observation.results if record.gate == "stock"]
    found = reference in asked
    if found and thread.reason in ("done", "text") and str(thread.result).strip() == str(reference):
        return 1.0
    return 0.5 if found else 0.2 if asked else 0.0
