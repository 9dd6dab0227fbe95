"""Workers: claim the tuples of a lane and run them (`worker`), one attempt at a tuple (`attempt`), and the processor time and
disk space that a worker leaves to others on its machine (`guardrails`)."""

__all__ = ["guardrails", "worker"]
