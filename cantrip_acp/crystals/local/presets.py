"""Presets: a table of Chat Completions servers (Groq, Mistral, Ollama, vLLM …) with their addresses and key variables.

With a preset, ``groq:llama-4-70b`` or ``vllm:qwen3`` needs no ``base_url``. To add a server, add one row.
"""

from __future__ import annotations

import re

from msgspec import Struct


class Preset(Struct, frozen=True):
    """One server. ``key`` is the environment variable with its key; a local server may need no key. ``start`` is the
    command that starts a local server; it is empty for other servers."""

    name: str
    base_url: str
    key: str
    start: str = ""

    @property
    def local(self) -> bool:
        """Whether the server runs on the user's own machine."""
        return bool(self.start)


_ALL = (
    Preset("ollama", "http://127.0.0.1:11434/v1", "OLLAMA_API_KEY", "ollama serve"),
    Preset("lmstudio", "http://127.0.0.1:1234/v1", "LM_API_TOKEN", "lms server start"),
    Preset("vllm", "http://127.0.0.1:8000/v1", "VLLM_API_KEY", "vllm serve {model}"),
    Preset("llamacpp", "http://127.0.0.1:8080/v1", "LLAMA_API_KEY", "llama-server --jinja --port 8080 -m MODEL.gguf"),
    Preset("alibaba", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    Preset("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    Preset("deepinfra", "https://api.deepinfra.com/v1/openai", "DEEPINFRA_TOKEN"),
    Preset("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    Preset("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    Preset("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    Preset("huggingface", "https://router.huggingface.co/v1", "HF_TOKEN"),
    Preset("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    Preset("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    Preset("nvidia", "https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY"),
    Preset("sambanova", "https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    Preset("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    Preset("xai", "https://api.x.ai/v1", "XAI_API_KEY"),
    Preset("zai", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}

LOCAL: tuple[str, ...] = tuple(preset.name for preset in _ALL if preset.local)
"""The local servers that discovery searches for, in the order in which the user sees them."""


def ollama_address(host: str) -> str:
    """Parse ``$OLLAMA_HOST``: ``host``, ``host:port``, ``:port`` or a URL. Empty means this machine. Returns the base URL."""
    text = host.strip().strip("\"'")
    if not text:
        return PRESETS["ollama"].base_url
    scheme, found, rest = text.rpartition("://")
    scheme = scheme if found else "http"
    rest, _, path = rest.partition("/")
    if rest.count(":") > 1 and not rest.startswith("["):
        rest = f"[{rest}]"
    matched = re.fullmatch(r"(\[.*\]|[^:]*)(?::(\d*))?", rest)
    name, port = (matched.group(1), matched.group(2) or "") if matched is not None else (rest, "")
    # A server may listen on these addresses, but a client cannot connect to them.
    name = "127.0.0.1" if name in ("", "0.0.0.0") else "[::1]" if name == "[::]" else name
    default = 11434 if not found else 443 if scheme == "https" else 80
    base = f"{scheme}://{name}:{port or default}"
    return f"{base}/{path.strip('/')}/v1" if path.strip("/") else f"{base}/v1"
