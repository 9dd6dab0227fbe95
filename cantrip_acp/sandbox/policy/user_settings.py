"""The user's own settings of package registries: pip, npm, pnpm, uv, Cargo, Maven, git.

A sandbox gets those that say where packages are and which certificates vouch for it, and no others: not a password, and nothing
that names a program. They go into files for the whole machine (`/etc/pip.conf`, a global npmrc, `/.cargo/config.toml`), which these
tools read before the settings of a project and of the home folder inside.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from cantrip_acp.files.protected_paths import without_credentials

NPMRC = "/etc/npmrc"
CARGO = "/.cargo/config.toml"
_LARGEST = 1024 * 1024
_PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "cert", "index")
_NPM_LINE = re.compile(
    r"(?:(?:@[\w.~-]+:)?registry|cafile|strict-ssl|(?:ca|ca\[\]))\s*=\s*(?P<value>\S.*)", re.IGNORECASE
)
_CARGO_TABLE = re.compile(r"\[(source|registries|registry|http|net)(?:\.[^\]\n]+)?\]")
_CARGO_LINE = re.compile(
    r"(?:registry|replace-with|index|protocol|default|cainfo|check-revoke|ssl-version|git-fetch-with-cli)\s*=\s*\S.*"
)
_UV_TABLE = re.compile(r"\[(?:\[index\]\]|pip\])")
_UV_LINE = re.compile(
    r"(?:index-url|extra-index-url|url|name|default|explicit|format|native-tls|system-certs|allow-insecure-host|index-strategy)"
    r"\s*=\s*\S.*"
)
_GIT_KEYS = r"^(http\..*ssl(cainfo|capath|verify)|url\..*\.insteadof)$"
_MIRROR = re.compile(r"<mirror>.*?</mirror>", re.DOTALL)
_LOGIN = re.compile(r"(?<=://)[^/\s@\"']*@")


@dataclass(frozen=True, slots=True)
class UserSettings:
    """``files``: texts of files that a sandbox gets, by path. ``certificates``: the files of certificates that they name.
    ``environment``: variables that name such a file."""

    files: Mapping[str, str] = field(default_factory=dict)
    certificates: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def user_settings(environ: Mapping[str, str], home: str) -> UserSettings:
    """Read the settings of the user with this home folder. On macOS there are none: nothing can be shown in /etc."""
    if not home or sys.platform != "linux":
        return UserSettings()
    config = environ.get("XDG_CONFIG_HOME", "") or f"{home}/.config"
    certificates: set[str] = set()
    pip = [f"{home}/.pip/pip.conf", f"{config}/pip/pip.conf", environ.get("PIP_CONFIG_FILE", "")]
    npm = [f"{config}/pnpm/rc", environ.get("npm_config_userconfig", "") or f"{home}/.npmrc"]
    files = {
        "/etc/pip.conf": _pip(pip, certificates),
        NPMRC: _npm(npm, home, certificates),
        "/etc/uv/uv.toml": _lines(f"{config}/uv/uv.toml", _UV_TABLE, _UV_LINE, top=True),
        CARGO: _cargo(environ.get("CARGO_HOME", "") or f"{home}/.cargo", certificates),
        "/etc/maven/settings.xml": _maven(f"{home}/.m2/settings.xml"),
        "/etc/gitconfig": _git(environ.get("GIT_CONFIG_GLOBAL", ""), home, certificates),
    }  # fmt: skip
    found = {path: text for path, text in files.items() if text}
    environment = {"npm_config_globalconfig": NPMRC} if NPMRC in found else {}
    if "/etc/maven/settings.xml" in found:
        # Maven before 3.9 does not know the variable, and on Debian it reads this file without it.
        environment["MAVEN_ARGS"] = "--global-settings /etc/maven/settings.xml"
    for path in sorted(certificates):
        # The /etc of a sandbox is a copy that has few files.
        if path.startswith("/etc/") and (text := _read(path)) and "PRIVATE KEY" not in text:
            found[path] = text
    return UserSettings(found, tuple(sorted(p for p in certificates if not p.startswith("/etc/"))), environment)


def _read(path: str) -> str:
    """The text of a small file; empty if there is none that can be read."""
    with suppress(OSError, UnicodeDecodeError, ValueError):
        if os.path.isabs(path) and os.path.isfile(path) and os.path.getsize(path) <= _LARGEST:
            with open(path, encoding="utf-8") as file:
                return file.read()
    return ""


def _plain(text: str) -> str:
    return _LOGIN.sub("", without_credentials(text))


def _pip(paths: Iterable[str], certificates: set[str]) -> str:
    """Those of /etc/pip.conf, and then the user's own, of which the last one wins."""
    merged = configparser.RawConfigParser()
    for path in ("/etc/pip.conf", *paths):
        one = configparser.RawConfigParser()
        try:
            one.read_string(_read(path))
        except configparser.Error:
            continue
        for section in one.sections():
            for key, value in one.items(section):
                if path == "/etc/pip.conf" or key in _PIP_KEYS:
                    merged.read_dict({section: {key: _plain(value)}})
                    if key == "cert":
                        certificates.add(os.path.expanduser(value))
    return "".join(
        f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in merged.items(section)) for section in merged.sections()
    ).replace("\n\n", "\n")  # fmt: skip


def _npm(paths: Iterable[str], home: str, certificates: set[str]) -> str:
    lines = []
    for path in paths:
        for line in _read(path).splitlines():
            if (found := _NPM_LINE.fullmatch(line.strip())) is not None:
                text = _plain(line.strip()).replace("${HOME}", home)
                # A variable of the environment may be a password.
                if "${" not in text:
                    lines.append(text)
                    if line.strip().lower().startswith("cafile"):
                        certificates.add(found["value"].strip().strip("\"'").replace("${HOME}", home))
    return "".join(f"{line}\n" for line in lines)


def _lines(path: str, tables: re.Pattern[str], lines: re.Pattern[str], *, top: bool = False) -> str:
    """The lines of a TOML file that are in one of these tables (or before all, if ``top``), and of one line each."""
    found, inside = [], top
    for line in map(str.strip, _read(path).splitlines()):
        if line.startswith("["):
            inside = tables.fullmatch(line) is not None
            found += [line] if inside else []
        elif inside and lines.fullmatch(line):
            found.append(_plain(line))
    text = "".join(f"{line}\n" for line in found)
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        # A value of several lines.
        return ""
    return text


def _cargo(home: str, certificates: set[str]) -> str:
    text = _lines(f"{home}/config.toml", _CARGO_TABLE, _CARGO_LINE) or _lines(
        f"{home}/config", _CARGO_TABLE, _CARGO_LINE
    )
    certificates |= set(re.findall(r"^cainfo\s*=\s*[\"']([^\"']+)", text, re.MULTILINE))
    return text


def _maven(path: str) -> str:
    mirrors = _MIRROR.findall(_read(path))
    return f"<settings><mirrors>\n{_plain(''.join(mirrors))}\n</mirrors></settings>\n" if mirrors else ""


def _git(path: str, home: str, certificates: set[str]) -> str:
    """The settings of the machine, and the user's certificates and mirrors (``insteadOf``)."""
    if not any(map(os.path.isfile, [path] if path else [f"{home}/.gitconfig", f"{home}/.config/git/config"])):
        return ""
    command = [
        "git",
        "config",
        *(["--file", path] if path else ["--global"]),
        "--null",
        "--includes",
        "--get-regexp",
        _GIT_KEYS,
    ]
    try:
        environment = {"HOME": home, "PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_NOSYSTEM": "1"}
        output = subprocess.run(command, env=environment, cwd="/", capture_output=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = []
    for entry in output.decode("utf-8", "replace").split("\0"):
        key, _, value = entry.partition("\n")
        section, _, rest = key.partition(".")
        between, _, name = rest.rpartition(".")
        if not value or "\n" in value:
            continue
        if name in ("sslcainfo", "sslcapath"):
            value = os.path.expanduser(value)
            certificates.add(value)
        lines += [_header(section, between), f"\t{name} = {_quoted(value)}"]
    own = "".join(f"{line}\n" for line in lines)
    return _plain(f"{_read('/etc/gitconfig')}\n{own}") if own else ""


def _header(section: str, between: str) -> str:
    return f"[{section} {_quoted(_plain(between))}]" if between else f"[{section}]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
