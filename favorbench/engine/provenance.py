"""With what a run was made: versions, machine, commit."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import threadpoolctl

from favorbench.engine.scenario import Scenario
from favorbench.inputs import File, get_input
from favorbench.numerics.backend import Backend

VERSION = importlib.metadata.version("favorbench")


def provenance(scenario: Scenario) -> dict[str, Any]:
    """Versions of Python and the libraries, CPU and BLAS, git commit of favorbench, and the input files read."""
    libraries = ("numpy", "scipy", "pandas", "pyarrow", *(["torch"] if scenario.backend == "torch" else []))
    return {
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in libraries},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": Backend(scenario.backend, scenario.device).gpu_name(),
        "blas": [
            {key: pool.get(key) for key in ("internal_api", "version", "architecture")}
            for pool in threadpoolctl.threadpool_info()
        ],
        "blas_threads_per_worker": 1,
        "git": _git(),
        "input_files": [
            {"input": spec, "sha256": law.digest(), "notes": list(law.notes())}
            for spec in scenario.inputs
            if isinstance(law := get_input(spec), File)
        ],
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _git() -> dict[str, Any] | None:
    """Commit of the checkout favorbench runs from, and whether its files differ from it; None when installed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None
