"""Releases: sets the version everywhere, checks that everything agrees, and tries a release up to its upload.

python tools/release.py check              versions and changelogs agree (--tag v1.2.3: and they are those of this tag)
python tools/release.py set 1.2.3          write the version wherever it stands, and date the changelog's section
python tools/release.py dry-run            check, then build, check and try all that is uploaded (make release-dry-run)

The version is `__version__` in cantrip_acp/version.py. Other files repeat it, because their tools cannot read it there.
`docs/releasing.md` says how a release is made.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r'^(__version__ = ")([^"]+)(")', re.MULTILINE)
PLACES = {
    "vscode-extension/package.json": r'^(  "version": ")([^"]+)(")',
    "vscode-extension/package-lock.json": r'\A([^}]*?"version": ")([^"]+)(")',
    "editors/registry/agent.json": r'((?:"version": "|cantrip-acp==))([0-9][^"]*)(")',
    "editors/zed/extension/extension.toml": r'^(version = ")([^"]+)(")',
    "editors/zed/extension/Cargo.toml": r'\A(\[package\][^\[]*?version = ")([^"]+)(")',
    "editors/emacs/cantrip-mode.el": r"^(;; Version: )(\S+)()",
}
"""Where the version is repeated: a pattern with what is before it, the version, and what is behind it."""
_LOCK = re.compile(r'("packages": \{\s*"": \{[^}]*?"version": ")([^"]+)(")')
SCHEMA = "https://cdn.agentclientprotocol.com/registry/v1/latest/agent.schema.json"
_RELEASED = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")


def version() -> str:
    found = VERSION.search((ROOT / "cantrip_acp" / "version.py").read_text())
    assert found is not None
    return found[2]


def problems(tag: str | None = None) -> list[str]:
    """What does not agree, each with its file."""
    wanted, found = version(), []
    for place, pattern in PLACES.items():
        text = (ROOT / place).read_text()
        others = {match[2] for match in re.finditer(pattern, text, re.MULTILINE)}
        if place.endswith("package-lock.json"):
            others |= {match[2] for match in _LOCK.finditer(text)}
        if others != {wanted}:
            found.append(f"{place}: the version is {', '.join(sorted(others)) or 'missing'}, not {wanted}")
    log = (ROOT / "CHANGELOG.md").read_text()
    dated = re.findall(r"^## \[([0-9][^\]]*)\] - \d{4}-\d\d-\d\d$", log, re.MULTILINE)
    if dated and dated[0] != wanted:
        found.append(f"CHANGELOG.md: its first dated section is {dated[0]}, not {wanted}")
    if not dated and not re.search(r"^## \[Unreleased\]\n\n###", log, re.MULTILINE):
        found.append(f"CHANGELOG.md: it has neither a section of {wanted} nor entries in [Unreleased]")
    own = re.search(r"^## (\S+)", (ROOT / "vscode-extension" / "CHANGELOG.md").read_text(), re.MULTILINE)
    if own is None or own[1] != wanted:
        found.append(f"vscode-extension/CHANGELOG.md: its first section is not {wanted}")
    if tag is not None:
        if tag != f"v{wanted}":
            found.append(f"the tag is {tag}, but the version is {wanted}")
        if wanted not in dated:
            found.append(
                f"CHANGELOG.md: no section `## [{wanted}] - YYYY-MM-DD`; make it with: tools/release.py set {wanted}"
            )
    return found


def set_version(wanted: str) -> None:
    """Write the version wherever it stands. What is unreleased in the changelog becomes the section of this version."""
    if not _RELEASED.fullmatch(wanted):
        raise SystemExit(f"{wanted!r} is no version of three numbers, such as 1.2.3")
    for place, pattern in {"cantrip_acp/version.py": VERSION.pattern, **PLACES}.items():
        file = ROOT / place
        text = re.sub(pattern, rf"\g<1>{wanted}\g<3>", file.read_text(), flags=re.MULTILINE)
        if place.endswith("package-lock.json"):
            text = _LOCK.sub(rf"\g<1>{wanted}\g<3>", text, count=1)
        file.write_text(text)
    log = ROOT / "CHANGELOG.md"
    if f"## [{wanted}]" not in log.read_text():
        dated = f"## [Unreleased]\n\n## [{wanted}] - {datetime.date.today().isoformat()}"
        log.write_text(log.read_text().replace("## [Unreleased]", dated, 1))


# --- The dry run: each step builds or tries something, and ends the process with what failed.


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> str:
    """The output of a command. Ends the process if it fails."""
    words = [str(each) for each in command]
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(words, cwd=cwd, env=kept | env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


def build(out: Path) -> tuple[Path, Path]:
    """Build the sdist from the checkout, and the wheel from the sdist, as PyPI's users would."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out)
    (sdist,) = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as temporary:
        with tarfile.open(sdist) as archive:
            archive.extractall(temporary, filter="data")
        (source,) = Path(temporary).iterdir()
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source)
    (wheel,) = out.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    say(f"{sdist.name} and {wheel.name}: twine check --strict")
    return sdist, wheel


def try_wheel(wheel: Path, folder: Path) -> None:
    """Install the wheel in a new environment, and cast there."""
    run(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv" / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    for program, expected in (("cantrip", f"cantrip {version()}\n"), ("cantrip-acp", f"cantrip-acp {version()}\n")):
        if (said := run(programs / program, "--version", cwd=folder)) != expected:
            raise SystemExit(f"{program} --version says {said!r}, not {expected!r}")
    (folder / "script.yaml").write_text("responses: [{tool_calls: [{gate: done, args: {answer: it works}}]}]\n")
    crystal = "crystal: scripted:./script.yaml"
    (folder / "try.cantrip.yaml").write_text(
        f"name: try\n{crystal}\ncircle: {{gates: [done], wards: [{{max_turns: 2}}]}}\n"
    )
    said = run(
        programs / "cantrip", "cast", "./try.cantrip.yaml", "Try.", cwd=folder, CANTRIP_STATE_DIR=str(folder / "s")
    )
    if "it works" not in said:
        raise SystemExit(f"the cast of the installed package says:\n{said}")
    say("the wheel in a new environment: --version, and a scripted cast")


def package_extension(npm: str) -> Path:
    """Package the VS Code extension, as it is uploaded to the marketplace and to Open VSX."""
    folder = ROOT / "vscode-extension"
    if not (folder / "node_modules" / "typescript").is_dir():
        run(npm, "ci", "--no-fund", "--no-audit", "--loglevel=error", cwd=folder)
    for script in ("check", "wheels", "package"):
        run(npm, "run", "--silent", script, cwd=folder)
    vsix = folder / "cantrip.vsix"
    with zipfile.ZipFile(vsix) as package:
        manifest = json.loads(package.read("extension/package.json"))
        wheels = [
            name for name in package.namelist() if name.startswith(f"extension/dist/wheels/cantrip_acp-{version()}-")
        ]
    if manifest["version"] != version() or len(wheels) != 1:
        raise SystemExit(f"{vsix} is of version {manifest['version']} with {wheels}, not of {version()}")
    say(f"{vsix.relative_to(ROOT)}: version {version()}, with the package's wheel")
    return vsix


def check_registry() -> None:
    """The entry of the registry of ACP agents, by our tests, and by the registry's own schema where it can be fetched."""
    run(sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/e2e/packaging/test_registry.py")
    import jsonschema

    try:
        with urllib.request.urlopen(SCHEMA, timeout=20) as answer:
            schema = json.load(answer)
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        say(f"editors/registry/agent.json: our rules only; the registry's schema cannot be fetched ({error})")
        return
    entry = json.loads((ROOT / "editors" / "registry" / "agent.json").read_text())
    wrong = [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(entry)]
    if wrong:
        raise SystemExit(f"editors/registry/agent.json does not fit {SCHEMA}: {'; '.join(wrong)}")
    say("editors/registry/agent.json: our rules, and the registry's schema")


def owner_of_name() -> str:
    """Whether the package index has a package of our name. The index is pip's, with the user's settings."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "index",
            "versions",
            "cantrip-acp",
            "--disable-pip-version-check",
            "--retries",
            "1",
        ],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode == 0:
        versions = done.stdout.partition("Available versions: ")[2].split("\n")[0]
        ours = version() in versions.split(", ")
        return f"the name cantrip-acp has releases on the package index ({versions}): " + (
            "this version is uploaded already" if ours else "make sure that they are yours before you upload another"
        )
    if (
        "No matching distribution" in done.stderr
        and "WARNING: Retrying" not in done.stderr
        and "URLError" not in done.stderr
    ):
        return (
            "the name cantrip-acp is free on the package index, and whoever takes it gets everybody who types `pip install "
            "cantrip-acp`: reserve it now with a pending publisher (https://pypi.org/manage/account/publishing) or a first upload"
        )
    why = done.stderr.strip().splitlines()[-1:]
    return f"whether the name cantrip-acp is free is unknown: the package index does not answer ({' '.join(why)})"


def left_for_an_owner() -> list[str]:
    """What a release still needs that only an owner of the accounts can do."""
    tags = subprocess.run(["git", "tag", "--list", f"v{version()}"], cwd=ROOT, capture_output=True, text=True).stdout
    dated = re.search(rf"^## \[{re.escape(version())}\] - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    return [
        owner_of_name(),
        "PyPI: a trusted publisher for this repository, the workflow release.yml and the environment `release`",
        "GitHub, environment `release`: the secrets VSCE_PAT, OVSX_PAT and REGISTRY_TOKEN, and reviewers",
        "VS Code marketplace and Open VSX: the publisher and the namespace `cantrip-acp`",
        "the registry of ACP agents: the workflow opens a pull request, which its maintainers must accept",
        *(
            []
            if dated
            else [f"CHANGELOG.md: `python tools/release.py set {version()}` dates the section of this version"]
        ),
        *([] if tags.strip() else [f"`git tag v{version()} && git push origin v{version()}` starts the upload"]),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="versions and changelogs agree")
    check.add_argument("--tag", help="the tag that is released, such as v1.2.3")
    commands.add_parser("set", help="write the version wherever it stands").add_argument("version")
    trial = commands.add_parser("dry-run", help="build, check and try all that is uploaded")
    trial.add_argument("--dist", type=Path, default=ROOT / "dist", help="the folder for the sdist and the wheel")
    trial.add_argument("--npm", default="npm", help="npm of Node 20.19 or later")
    given = parser.parse_args(argv)
    if given.command == "set":
        set_version(given.version)
    found = problems(getattr(given, "tag", None))
    if found:
        print("\n".join(found), file=sys.stderr)
        return 1
    say(f"version {version()}: all files and changelogs agree")
    if given.command == "dry-run":
        given.dist.mkdir(parents=True, exist_ok=True)
        for old in (*given.dist.glob("cantrip_acp-*.whl"), *given.dist.glob("cantrip_acp-*.tar.gz")):
            old.unlink()
        _, wheel = build(given.dist)
        with tempfile.TemporaryDirectory() as temporary:
            try_wheel(wheel, Path(temporary))
        package_extension(given.npm)
        check_registry()
        say("nothing was uploaded. Left to do for an owner:")
        for number, each in enumerate(left_for_an_owner(), 1):
            say(f"  {number}. {each}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
