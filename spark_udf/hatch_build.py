"""Takes the version, and the pin to the wheel of the same version, from the workspace: they stand in one place."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class WorkspaceVersion(MetadataHookInterface):
    """Fills `version` and `dependencies` from `[workspace.package]` of the workspace's Cargo.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        """`metadata`: the table [project], changed in place."""
        root = Path(self.root)
        # A source distribution carries its own copy beside the package.
        manifest = next(path for path in (root / "Cargo.toml", root.parent / "Cargo.toml") if path.exists())
        version = tomllib.loads(manifest.read_text("utf-8"))["workspace"]["package"]["version"]
        metadata["version"] = version
        metadata["dependencies"] = [f"fencepost=={version}", "pyarrow>=18"]
