"""Model server: serves a model with llama.cpp on a Unix socket. Its text runs inside the sandbox, with its settings as JSON."""

import json
import os
import sys
import time
from typing import Any


def main(settings: dict[str, Any]) -> None:
    """Serve until the process is ended. Prints ``ready`` when it can answer."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["weights"]
    params.hostnames = [settings["socket"]]
    params.n_parallel = settings["parallel"]
    params.n_ctx = settings["window"] * settings["parallel"]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    # Threads that wait must not take processors from others.
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    params.n_gpu_layers = settings["gpu_layers"]
    # Earlier prompts of other sessions. llama.cpp would keep 8 GB of them, more than its sandbox has.
    params.cache_ram_mib = 1024
    params.use_jinja = True
    params.warmup = False
    params.verbosity = 1
    if os.path.lexists(settings["socket"]):
        os.unlink(settings["socket"])
    server = xllamacpp.Server(params)  # noqa: F841 - it serves as long as it is there
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
