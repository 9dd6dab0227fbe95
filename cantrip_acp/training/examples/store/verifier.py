"""Rewards the answer to "How many apples are in the store?": 1 for the right number, less for what is on the way to it."""

from cantrip_acp.loom.query.thread import Thread


def score(thread: Thread, reference: int) -> float:
    said = thread.reason in ("done", "text") and str(thread.result).strip() == str(reference)
    asked = any(record.gate == "stock" for turn in thread.acted for record in turn.observation.results)
    found = any(str(reference) in str(record.result) for turn in thread.acted for record in turn.observation.results)
    if said and found:
        return 1.0
    return 0.5 if found else 0.2 if asked else 0.0
