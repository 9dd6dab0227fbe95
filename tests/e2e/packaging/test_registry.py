"""What the registry of ACP agents wants of an entry, and that ours says the same as the package.

Its rules: id of lower-case letters, digits and hyphens; a version of three numbers, the same wherever it stands; a
distribution by npx, uvx or binary and no other key; an icon of 16 by 16 in `currentColor` alone; and an agent that offers a
way to sign in of the type agent or terminal.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cantrip_acp.acp.initialize import initialize_result
from cantrip_acp.version import __version__

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "editors" / "registry"
PAINT = {"currentColor", "none", "inherit"}


@pytest.fixture
def entry() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "agent.json").read_text())
    return loaded


def test_it_has_what_the_schema_asks_for_and_nothing_else(entry: dict[str, Any]) -> None:
    texts = {"id", "name", "version", "description", "repository", "website", "license", "license_url"}
    assert {"id", "name", "version", "description", "distribution"} <= set(entry) <= texts | {"authors", "distribution"}
    assert all(isinstance(entry[key], str) and entry[key] for key in texts & set(entry))
    assert all(isinstance(author, str) for author in entry["authors"])
    assert re.fullmatch(r"[a-z][a-z0-9-]*", entry["id"])
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", entry["version"])
    assert set(entry["distribution"]) <= {"npx", "uvx", "binary"}
    assert set(entry["distribution"]["uvx"]) <= {"package", "args", "env", "cmd"}


def test_it_says_what_the_package_says(entry: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert entry["version"] == __version__
    assert entry["distribution"]["uvx"]["package"] == f"{project['name']}=={__version__}"
    # uvx starts the command that is called as the package is.
    assert project["name"] in project["scripts"]
    assert entry["license"] == project["license"]
    info = initialize_result()["agentInfo"]
    assert (entry["id"], entry["name"]) == (info["name"], info["title"])


def test_the_icon_takes_the_themes_colour() -> None:
    root = ElementTree.parse(FOLDER / "icon.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("16", "16", "0 0 16 16")
    used = {each.get(key) for each in root.iter() for key in ("fill", "stroke") if each.get(key)}
    assert "currentColor" in used
    assert used <= PAINT
    text = (FOLDER / "icon.svg").read_text()
    # Comments break the pages that the registry puts icons in.
    assert "<!--" not in text
    assert not re.search(r"style=|<style|<script|<image|href|#[0-9a-fA-F]{3,8}\b|rgba?\(", text)


def test_the_agent_offers_a_way_to_sign_in() -> None:
    # A method without a type is one of the agent's own.
    assert {way.get("type", "agent") for way in initialize_result()["authMethods"]} & {"agent", "terminal"}
