"""The command line, run in this process."""

import io
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from favorbench import cli


def run(*arguments):
    """Exit code, stdout, stderr of a command; a single text is taken apart as a shell does."""
    arguments = shlex.split(arguments[0]) if len(arguments) == 1 else arguments
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["favorbench", *arguments])
        patch.setenv("PYTHONSAFEPATH", "1")  # as the command does; the processes of other tests find their modules
        with pytest.raises(SystemExit) as caught:
            cli.main()
    code = caught.value.code
    assert isinstance(code, int)
    return code, out.getvalue(), err.getvalue()


def succeeded(*arguments):
    """Stdout of a command that must succeed, whatever it says on stderr."""
    code, out, _ = run(*arguments)
    assert code == 0
    return out


def printed(*arguments):
    """Stdout of a command that must succeed and print nothing else."""
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    return out


def python(*arguments, **options):
    """A Python process with these arguments, when it has ended."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)


def in_a_process(command, **options):
    """A command in a process of its own, when it has ended."""
    return python("-m", "favorbench", *shlex.split(command), **options)


def refused(*arguments):
    """The one line on stderr of a command that must exit 2 and print nothing else."""
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("favorbench: ") and err.count("\n") == 1 and "Traceback" not in err
    assert "unexpected" not in err
    return err


def read_table(text):
    """The lines of a table as tuples of texts; cells are parted by " => "."""
    return [tuple(" ".join(cell.split()) for cell in line.split(" => ")) for line in text.strip().splitlines()]


def commands(text):
    """The lines of a table, "arguments => words", with the arguments taken apart as a shell does."""
    return [(shlex.split(arguments), said) for arguments, said in read_table(text)]


def check_refused(text, **values):
    """Each command of a table is refused with the words beside it; names in capitals stand for values."""
    for arguments, said in commands(text):
        assert said in refused(*(str(values.get(word, word)) for word in arguments))
