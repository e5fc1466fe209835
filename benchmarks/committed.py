"""The runs in results/: the command that makes each of them, and the compression of a run for git.

    python -m benchmarks.committed                      # lists the runs and their commands
    python -m benchmarks.committed catalogue samplers   # recomputes these, below the current directory

Files of heads are read from the current directory; benchmarks/README.md says how to capture them. A run is kept as its
manifest and one compressed part with the rows of all draws.
"""

import shlex
import subprocess
import sys
from pathlib import Path

from favorbench.engine.columns import COLUMNS
from favorbench.engine.rows import RowStore
from favorbench.engine.store import KEY, MANIFEST, SCHEMA, find_runs

_SINKS = "sweep sinks --inputs smollm2-last256-{}.npz -R 64,256"
_CAUSAL = (
    "clusters,clusters(lloyd=3),multipole,multipole(lloyd=3),sinks(4):positive,sinks(4):clusters,"
    "sinks(4):multipole(lloyd=3),window(128):positive,window(128):clusters,sinks(4):window(128):positive,"
    "sinks(4):window(128):clusters(lloyd=3),sinks(4):window(128):multipole(lloyd=3),eva,sinks(4):sampled-keys"
)

_SECONDS = "sweep --maps none --baselines uniform --trials 1 --backend torch --dtype float32"  # then favorbench speed
_BLOCKS = (
    "sinks(4):multipole,sinks(4):multipole(exact=0.75,block=128,cells='tree'),sinks(4):block-sparse,sinks(4):pisa,"
)

#: The arguments of favorbench, without --out.
COMMANDS = {
    "blog": "reproduce",
    "real-heads": "sweep real-heads",
    "real-heads-positive": "sweep real-heads --maps positive,hyperbolic",
    "samplers": "sweep samplers",
    "catalogue": "sweep catalogue",
    "dtype": "sweep --maps positive,hyperbolic,oprf,trig --samplers orthogonal -R 256 --scale 0.5,1.0 "
    "--backend torch --dtype float64,float32,float16,bfloat16",
    "minilm-72": "sweep estimators --inputs minilm72.npz -R 16,32,64,128,240",
    "minilm-72-gpl": "sweep estimators --inputs minilm72-gpl.npz",
    "smollm2-1024": _SINKS.format(1024),
    **{f"smollm2-{length}": f"{_SINKS.format(length)},1024" for length in (2048, 4096, 8192)},
    "smollm2-causal-4096": f"sweep sinks --inputs smollm2-causal-4096.npz -R 256 --trials 1 --maps positive "
    f"--methods '{_CAUSAL}'",
    "minilm-72-seconds": f"{_SECONDS} --inputs minilm72.npz -R 64,128,256 --methods "
    "'sinks(4):multipole,sinks(4):multipole(block=16),multipole(block=128),block-sparse(block=16),pisa,"
    "sinks(4):window(64):nothing'",
    "smollm2-4096-seconds": f"{_SECONDS} --inputs smollm2-causal-4096.npz --causal -R 256,512,1024 --methods "
    f'"{_BLOCKS}sinks(4):pbs-attn,sinks(4):window(256):nothing,sinks(4):window(512):nothing,'
    'sinks(4):window(1024):nothing"',
}


def compact(path: Path) -> int:
    """Rewrite the rows of a run as one part with lossless compression; returns its size in bytes.

    Labels use dictionaries. Metrics use byte stream split, because neighbouring exponents are similar.
    """
    metrics = [column.name for column in COLUMNS if column.role == "metric"]
    labels = [column.name for column in COLUMNS if column.role != "metric"]
    with RowStore(path, MANIFEST, SCHEMA, KEY) as store:
        part = store.join(
            "draw", compression="zstd", compression_level=19, use_dictionary=labels, use_byte_stream_split=metrics
        )
    return part.stat().st_size


def main(names: list[str]) -> None:
    """Recompute and compress these runs; without names, list all."""
    for name in names:
        out = Path("results") / name
        command = [sys.executable, "-m", "favorbench", *shlex.split(COMMANDS[name]), "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for run in find_runs(out):
            print(f"{run}: {compact(run)} bytes")
    for name, command in COMMANDS.items() if not names else ():
        print(f"{name:20} favorbench {command}")


if __name__ == "__main__":
    main(sys.argv[1:])
