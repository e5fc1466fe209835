"""The versions, machine and commit that made a run."""

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import threadpoolctl

from favorbench.engine.plan import Plan
from favorbench.inputs import Fixed, InputSource
from favorbench.maps import FeatureMap
from favorbench.numerics.backend import Backend
from favorbench.registry import declared_version, label

VERSION = importlib.metadata.version("favorbench")

#: Wheels (SciPy, faiss, OpenCV) contain a BLAS of their own, which some processes load late or never: NumPy's counts.
_COPY = re.compile(r"(?<!numpy)(\.libs|[/\\]\.dylibs)[/\\]")


def provenance(plan: Plan) -> dict[str, Any]:
    """Versions of Python and the libraries, CPU and BLAS, git commit of favorbench, and the input files read."""
    study = plan.study
    libraries = ("numpy", "scipy", "pandas", "pyarrow", *(["torch"] if study.scenario.backend == "torch" else []))
    return {
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in libraries},
        **machine(study.backend),
        "git": _git(),
        "num_features": {label(feature_map): _features(plan, feature_map) for feature_map in study.maps},
        "declared_versions": {
            label(member): version
            for members in (study.maps, study.samplers, study.methods, study.baselines)
            for member in members
            if (version := declared_version(member)) is not None
        },
        "input_files": [
            {"input": name, "sha256": law.digest(), "notes": input_notes(plan, name, law)}
            | ({"effect": law.effect} if law.effect else {})
            | ({"value_dim": d_v} if (d_v := law.heads(None, None)[0].value_dim) else {})
            for name, (_, law) in study.inputs.items()
            if isinstance(law, Fixed)
        ],
        "calibration_sha256": study.calibration and study.calibration.law.digest(),
    }


def machine(backend: Backend) -> dict[str, Any]:
    """The machine: CPU or GPU, and the BLAS libraries with their kernels."""
    loaded = [pool for pool in threadpoolctl.threadpool_info() if not _COPY.search(pool["filepath"])]
    libraries = [pool for pool in loaded if pool["user_api"] == "blas"]  # OpenMP, which torch loads, multiplies nothing
    pools = sorted(libraries, key=lambda pool: (pool["internal_api"], str(pool.get("version"))))
    return {
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": backend.gpu_name(),
        "blas": [{key: pool.get(key) for key in ("internal_api", "version", "architecture")} for pool in pools],
        "blas_threads_per_worker": 1,
    }


def count_done(machines: list[dict[str, Any]], machine: Mapping[str, Any], done: int) -> None:
    """Add to the items that a machine, which may be new in the list, has done."""
    for known in machines:
        if {**known, "done": 0} == {**machine, "done": 0}:
            known["done"] += done
            return
    machines.append({**machine, "done": done})


def _features(plan: Plan, feature_map: FeatureMap) -> str:
    """The num_features of a map as a function of R: "2R", "3R + 1", "fixed"."""
    if feature_map.randomness == "none":
        return "fixed"
    counts = set()
    for head_dim in sorted({shape.head.head_dim for shape in plan.shapes}):
        first, second = (feature_map.num_features(size, head_dim) for size in (1, 2))
        more = 2 * first - second
        counts.add(f"{second - first if second - first > 1 else ''}R" + (f" + {more}" if more else ""))
    return " or ".join(sorted(counts))


def input_notes(plan: Plan, name: str, law: InputSource) -> list[str]:
    """Sentences about an input as this plan measures it: of the data, of the part of its tokens, and of the mask."""
    tokens, notes = max(head.seq_len for head in law.heads(None, None)), [*law.notes()]
    lengths = sorted({shape.head.seq_len for shape in plan.shapes if shape.input == name} - {tokens})
    notes += [f"the first {length} of its {tokens} tokens" for length in lengths]
    causal, said = plan.study.scenario.causal, law.causal
    if said and causal:
        notes.append("its heads are causal, and measured so")
    elif said is not None and said != causal:
        kind = "causal" if said else "not causal"
        how = "without" if said else "with"
        notes.append(f"its heads are {kind}, and measured {how} the mask, like all inputs of this run")
    return notes


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

    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}  # a hook sets its repository
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=env).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": output.removesuffix("-dirty"), "dirty": output.endswith("-dirty")}
