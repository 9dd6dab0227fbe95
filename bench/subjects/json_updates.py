"""Updates as fast as the standard library's json writes them: a line an update, each written by itself.

`python -m bench.subjects.json_updates COUNT` waits for a line, writes COUNT updates and a reply.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    count = int(sys.argv[1])
    for _ in sys.stdin:
        for number in range(count):
            update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"word {number} "}}
            params = {"sessionId": "sess_0123456789", "update": update}
            line = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}) + "\n"
            os.write(1, line.encode())
        os.write(1, b'{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}\n')


if __name__ == "__main__":
    main()
