"""The command `privsyn`: run and resume apps, look at runs, plan a privacy budget.

May import every room; none imports it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import click

from flower_privsyn import environment
from flower_privsyn.cli.app import privsyn
from flower_privsyn.cli.output import FAILED, INTERRUPTED, REFUSED, complain, plain_streams
from flower_privsyn.errors import PrivsynError

__all__ = ["main"]


@plain_streams()
def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `privsyn`; nothing that it prints has control characters.

    Args:
        arguments: Words of the command line without the program; `sys.argv` by default.

    Returns:
        The exit status: 0 for success, 2 when what was asked for cannot be done, 1 when
        something failed unexpectedly, 130 when it was interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what it began is ended, too
    try:
        with privsyn.make_context("privsyn", words.copy(), obj=words) as context:
            return int(privsyn.invoke(context))
    except click.exceptions.Exit as end:  # of --help and --version
        return end.exit_code
    except click.UsageError as error:
        if error.ctx is not None:
            sys.stderr.write(f"{error.ctx.get_usage()}\n")
        return complain(error.format_message(), REFUSED)
    except (PrivsynError, PermissionError) as error:  # also of a folder that cannot be entered
        return complain(str(error), REFUSED)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has closed it, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if os.environ.get(environment.TRACEBACK):
            raise
        from flower_privsyn.files import is_disk_full
        from flower_privsyn.run.run_format import disk_full_sentence

        if is_disk_full(error):
            return complain(f"{disk_full_sentence()}: {error}", REFUSED)
        what = f"{type(error).__name__}: {error}"
        return complain(
            f"unexpected {what} (set {environment.TRACEBACK}=1 to see where it comes from)", FAILED
        )
