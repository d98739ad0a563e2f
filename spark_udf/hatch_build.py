"""Takes the version and the pin of the core wheel from the workspace, where the version is defined once."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class WorkspaceVersion(MetadataHookInterface):
    """Fills `version` and `dependencies` from `[workspace.package]` in the workspace's Cargo.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Change `metadata`, the table [project], in place."""
        root = Path(self.root)
        # A source distribution contains a copy of Cargo.toml.
        manifest = next(path for path in (root / "Cargo.toml", root.parent / "Cargo.toml") if path.exists())
        version = tomllib.loads(manifest.read_text("utf-8"))["workspace"]["package"]["version"]
        metadata["version"] = version
        metadata["dependencies"] = [f"fencepost=={version}", "pyarrow>=21"]
