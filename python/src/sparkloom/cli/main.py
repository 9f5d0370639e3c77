"""Entry point: find the sub-command, import it alone, run it, turn errors into text and exit codes."""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import itertools
import json
import os
import sys
import traceback

from sparkloom import __version__
from sparkloom.cli.table import COMMANDS
from sparkloom.errors import Exit, SparkloomError


def usage() -> str:
    """The list of sub-commands, without importing any of them."""
    width = max(map(len, COMMANDS))
    rows = [f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items()]
    return "\n".join(
        ["usage: sparkloom COMMAND [OPTIONS]   (sparkloom COMMAND --help tells more)", "", "commands:", *rows]
    )


def main(argv: list[str] | None = None) -> None:
    """Run `sparkloom`; always ends by SystemExit."""
    args = sys.argv[1:] if argv is None else argv
    try:
        code = run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        code = no_reader()
    raise SystemExit(code)


def no_reader() -> int:
    """Standard output has no reader any more (`sparkloom ... | head`): end quietly, without a second try."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OK


def run(args: list[str]) -> int:
    """Run one command line; return its exit code."""
    if not args:
        print(usage(), file=sys.stderr)
        return Exit.USAGE
    name, rest = args[0], args[1:]
    if name in ("-h", "--help", "help"):
        print(usage())
        return Exit.OK
    if name in ("-V", "--version", "version"):
        print(__version__)
        return Exit.OK
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean `sparkloom {close[0]}`?" if close else "see `sparkloom --help`"
        return report(SparkloomError(f"no command {name!r}", mend=hint, code=Exit.USAGE), rest)
    try:
        app = importlib.import_module(COMMANDS[name][0]).app
        app(args=rest, prog_name=f"sparkloom {name}")
    except SparkloomError as error:
        return report(error, rest)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return no_reader()
    except SystemExit as end:
        if isinstance(end.__context__, OSError) and end.__context__.errno == errno.EPIPE:
            return no_reader()  # click catches it and says 1
        return end.code if isinstance(end.code, int) else Exit.OK if end.code is None else Exit.INTERNAL
    except Exception as error:
        if os.environ.get("SPARKLOOM_DEBUG"):
            traceback.print_exc()
        return report(
            SparkloomError(
                f"unexpected {type(error).__name__}: {error}",
                mend="a fault of Sparkloom: run again with SPARKLOOM_DEBUG=1 and report the traceback",
                code=Exit.INTERNAL,
            ),
            rest,
        )
    return Exit.OK


def wants_json(args: list[str]) -> bool:
    """Whether the command line asks for JSON output."""
    return "--format=json" in args or any(
        a == "--format" and b == "json" for a, b in itertools.pairwise(args)
    )


def report(error: SparkloomError, args: list[str]) -> int:
    """Print the error where the caller looks for it; return its exit code."""
    if wants_json(args):
        print(json.dumps(error.as_dict(), indent=2, ensure_ascii=False))
    else:
        print(error, file=sys.stderr)
    return int(error.code)
