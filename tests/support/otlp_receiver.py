"""A receiver of OTLP over HTTP: what a collector gets."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """Takes what an exporter sends; ``spans`` once something came."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self._came = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with receiver._came:
                    receiver.requests.append(ExportTraceServiceRequest.FromString(body))
                    receiver._came.notify_all()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def spans(self, count: int, seconds: float = 30) -> dict[str, Any]:
        """At least so many spans, by name."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.all()) >= count, seconds), [s.name for s in self.all()]
        return {span.name: span for span in self.all()}

    def all(self) -> list[Any]:
        return [s for r in self.requests for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


def attributes(holder: Any) -> dict[str, Any]:
    out = {}
    for pair in holder.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        out[pair.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return out
