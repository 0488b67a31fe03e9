"""`python -m remote.wheelhouse pack`: an environment of uv.lock for a box without a registry.

Exit codes: 0 packed; 1 it could not be, and a line on stderr says why; 2 wrong arguments; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from remote.errors import RemoteError
from remote.wheelhouse.download import default_cache
from remote.wheelhouse.locked import EXTRAS, PYTHONS, locked_wheels
from remote.wheelhouse.pack import describe, pack

ROOT = Path(__file__).resolve().parents[2]


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    uv = ROOT / ".uv" / "bin" / "uv"
    try:
        if not uv.exists():
            raise RemoteError(f"{uv} is missing: every stage of remote/run_stage.sh installs it")
        if args.dry_run:
            wheels = locked_wheels(ROOT, uv, args.extra, args.python)
            print("".join(f"{wheel.file}\t{wheel.size}\n" for wheel in wheels) + describe(wheels))
            return 0
        pack(
            ROOT,
            uv,
            args.extra,
            args.python,
            args.out,
            args.part_mib * 2**20,
            default_cache(),
            _say,
            with_uv=args.with_uv,
            with_python=args.with_python,
        )
    except KeyboardInterrupt:
        _say("interrupted: what is loaded is kept, the same command goes on")
        return 130
    except (RemoteError, OSError) as error:
        _say(f"error: {error}")
        return 1
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m remote.wheelhouse", description="Environments for boxes without a registry."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("pack", help="load the wheels of an environment and cut them into parts")
    command.add_argument(
        "--extra", choices=EXTRAS, required=True, help="none: the environment of the project"
    )
    command.add_argument("--python", choices=PYTHONS, default="3.12", help="of the box (default: 3.12)")
    command.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="gets the parts and MANIFEST.json"
    )
    command.add_argument(
        "--part-mib", type=_part_mib, default=40, metavar="N", help="size of a part (default: 40)"
    )
    command.add_argument("--with-uv", action="store_true", help="uv as well, for a box that has none")
    command.add_argument("--with-python", action="store_true", help="CPython as well")
    command.add_argument(
        "--dry-run", action="store_true", help="print the wheels and their bytes, load nothing"
    )
    return parser


def _part_mib(text: str) -> int:
    size = int(text)
    if size < 1:
        raise argparse.ArgumentTypeError(f"{size} MiB is too small: a part has at least 1 MiB")
    return size


if __name__ == "__main__":
    sys.exit(main())
