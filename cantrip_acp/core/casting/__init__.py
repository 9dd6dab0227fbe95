"""One cast: from an intent to its end (LOOP-1..7). Start with `loop`.

`loop` queries the crystal and acts on what it says, `turn_builder` makes each turn's record, `query_stream` passes on
what streams in, `cast_stream` gives its events to a reader, `request_graph` and `sampled_tokens` say how the queries of a
cast led to each other. Imports the state and contracts of the core, never the entity.
"""

__all__ = ["cast_stream", "gate_executor", "query_digest", "request_graph", "result"]
