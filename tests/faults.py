"""Random single faults in the numeric files, and the fast tests that notice them.

``python -m tests.faults --count 100 --seed 1`` copies the repository into a temporary directory, finds out which tests
run which statements there (``--reached FILE`` keeps that, or reads it), and makes one fault after another in the copy.
The tests that run the changed statement decide, the quickest first. Survivors are printed, and belong into
``tests/data/faults.txt`` with the reason why they survive, or behind a new test.
"""

import argparse
import ast
import bisect
import builtins
import copy
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
FILES = [
    "attention/*", "baselines/*", "maps/*", "methods/*", "numerics/*", "samplers/*", "inputs/synthetic", "kernels",
    "metrics", "statistics", "engine/calibration", "engine/cost", "engine/study", "engine/trial", "results/compare",
    "results/ranking", "results/summary", "models/effects", "models/gradients", "models/replacements", "models/swap",
    "studies/recommend/*", "studies/closed_forms",
]  # fmt: skip
SWAPPED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Fault(NamedTuple):
    """A node of a file, its replacement, and lines: a test must run one of them to notice the fault."""

    path: str
    node: ast.AST
    new: str
    lines: tuple[int, int]


def changed(node, **fields):
    node = copy.copy(node)
    vars(node).update(fields)
    return node


def replacements(node):
    """Each wrong node that may stand in the place of this one."""
    match node:
        case ast.BinOp(op=ast.MatMult()):
            yield changed(node, left=node.right, right=node.left)
        case ast.BinOp(left=left, right=right):
            if not any(isinstance(part, ast.JoinedStr) or is_text(part) for part in (left, right)):
                yield from [changed(node, op=SWAPPED[type(node.op)]())] if type(node.op) in SWAPPED else []
                yield left
        case ast.BoolOp():
            yield changed(node, op=SWAPPED[type(node.op)]())
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield operand
        case ast.Compare(ops=[first, *rest]):
            yield changed(node, ops=[SWAPPED[type(first)](), *rest])
        case ast.IfExp(body=body, orelse=orelse):
            yield changed(node, body=orelse, orelse=body)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(1.5 * value + (value == 0))
        case ast.Call(func=ast.Name("min" | "max")):
            pass  # in any order the same
        case ast.Call(args=[first, second, *rest]) if not isinstance(second, ast.Starred):
            yield changed(node, args=[second, first, *rest])
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield ast.Pass()


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def faults(path):
    """Every fault of a file, but for messages, types and decorators."""

    def walk(node, lines, function):
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.stmt) and (function or isinstance(node, ast.ClassDef)):
            lines = node.lineno, node.lineno if function else node.end_lineno
        if not is_text(getattr(node, "value", None)):
            for new in replacements(node):
                yield Fault(path, node, ast.unparse(new), lines)
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                inside = function or (isinstance(node, ast.FunctionDef) and name == "body")
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from walk(child, lines, inside)

    return walk(ast.parse((REPOSITORY / path).read_text()), (0, 10**6), False)


def wrong(fault):
    """Return the text of the file with the fault, and the line of it before and after."""
    lines, node = (REPOSITORY / fault.path).read_bytes().splitlines(keepends=True), fault.node
    first, last = lines[node.lineno - 1][: node.col_offset], lines[node.end_lineno - 1][node.end_col_offset :]
    new = fault.new if isinstance(node, ast.stmt) else f"({fault.new})"
    old = b"".join(lines[node.lineno - 1 : node.end_lineno])
    text = b"".join([*lines[: node.lineno - 1], first, new.encode(), last, *lines[node.end_lineno :]])
    return text, " ".join(old.decode().split()), " ".join((first.decode() + new + last.decode()).split())


class Marked(ast.NodeTransformer):
    """Before every statement of a function, a call that says that it is reached."""

    def __init__(self, path):
        self.path, self.inside = path, 0

    def generic_visit(self, node):
        function = isinstance(node, ast.FunctionDef | ast.Lambda)
        self.inside += function
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if self.inside and isinstance(body, list) and not isinstance(node, ast.ClassDef):
                keep = name == "body" and isinstance(body[0:1] and body[0], ast.Expr) and is_text(body[0].value)
                # In a process that a test starts, nothing else has made the set.
                mark = f"vars(__import__('builtins')).setdefault('marked', set()).add(({self.path!r}, %d))"
                pairs = [part for s in body for part in (*ast.parse(mark % s.lineno).body, s)]
                setattr(node, name, pairs[1:] if keep else pairs)
        self.inside -= function
        return node


# The plugin of pytest: records what tests reach, or runs those that are listed, in their order.

builtins.marked = getattr(builtins, "marked", set())
RECORD, ONLY = os.environ.get("FAULTS_RECORD"), os.environ.get("FAULTS_ONLY")
TESTS, OF_FILES = {}, {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Record the seconds and the statements of a test."""
    builtins.marked.clear()
    start = time.perf_counter()
    result = yield
    if RECORD:
        TESTS[item.nodeid] = time.perf_counter() - start, sorted(builtins.marked)
    return result


def pytest_runtest_logreport(report):
    if report.failed:
        OF_FILES.setdefault("failed", set()).add(report.nodeid)


def pytest_collection_modifyitems(items):
    if ONLY:
        place = {name: number for number, name in enumerate(json.loads(Path(ONLY).read_text()))}
        items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])


def pytest_sessionfinish():
    if RECORD:
        failed = OF_FILES.get("failed", ())
        Path(RECORD).write_text(json.dumps({name: found for name, found in TESTS.items() if name not in failed}))


# The tool


def run_tests(folder, *arguments, **environment):
    """Run pytest on a copy of the repository; return the process when it has ended."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "tests.faults", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def record(folder, files, destination):
    for path in paths():
        tree = ast.fix_missing_locations(Marked(path).visit(ast.parse((REPOSITORY / path).read_text())))
        (folder / path).write_text(ast.unparse(tree))
    done = run_tests(folder, *files, FAULTS_RECORD=str(destination))
    print(done.stdout[-300:], file=sys.stderr)
    for path in paths():
        shutil.copy(REPOSITORY / path, folder / path)


def paths():
    package = REPOSITORY / "favorbench"
    return sorted(p.relative_to(REPOSITORY).as_posix() for name in FILES for p in package.glob(f"{name}.py"))


def caught_by(fault, reached, folder, seconds):
    """Return the test that notices a fault, or None: tests of little else first, and as many as take the seconds."""
    tests = reaching(fault.path, fault.lines, reached) or reaching(fault.path, (0, 10**6), reached)
    ends = list(itertools.accumulate(took for _, took, _ in sorted(tests)))
    names = [name for _, _, name in sorted(tests)][: bisect.bisect(ends, seconds) + 1]
    few = bisect.bisect(ends, seconds / 10) + 1
    (folder / fault.path).write_bytes(wrong(fault)[0])
    try:
        return next(filter(None, (failure(folder, part) for part in (names[:few], names[few:]) if part)), None)
    finally:
        shutil.copy(REPOSITORY / fault.path, folder / fault.path)


def reaching(path, lines, reached):
    """Number of statements, seconds and name of each test that runs one of some lines of a file."""
    first, last = lines
    return [
        (len(places), took, name) for name, (took, places) in reached.items()
        if any(file == path and first <= line <= last for file, line in places)
    ]  # fmt: skip


def failure(folder, names):
    """Return the first of some tests that fails, or an exit code; None where all pass."""
    only = folder / "only.json"
    only.write_text(json.dumps(names))
    files = sorted({name.partition("::")[0] for name in names})
    done = run_tests(folder, "-x", "--timeout", "60", *files, FAULTS_ONLY=str(only))
    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return found[1] if found else f"exit {done.returncode}" if done.returncode else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0, help="of tests for a fault")
    parser.add_argument("--reached", type=Path, help="what tests reach: read, or written where it is missing")
    parser.add_argument("tests", nargs="*", help="files of tests; the default is all")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "copy"
        shutil.copytree(REPOSITORY, folder, ignore=shutil.ignore_patterns("__pycache__", ".venv", "_build"))
        reached = asked.reached or Path(name) / "reached.json"
        if not reached.exists():
            record(folder, asked.tests, reached.resolve())
        reached = json.loads(reached.read_text())
        every = [fault for path in paths() for fault in faults(path)]
        print(f"{len(every)} faults in {len(paths())} files, {len(reached)} tests", file=sys.stderr)
        for number, fault in enumerate(random.Random(asked.seed).sample(every, asked.count)):
            if number >= asked.skip:
                start = time.perf_counter()
                test, (_, old, new) = caught_by(fault, reached, folder, asked.seconds), wrong(fault)
                line = [f"{number}  {fault.path}:{fault.node.lineno}", old, new, test or "SURVIVED"]
                print(*line, f"{time.perf_counter() - start:.0f} s", sep="\n    ", flush=True)


if __name__ == "__main__":
    main()
