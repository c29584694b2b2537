"""The command line: prints the difference, or that there is none."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import tools.schema
from penstock import database
from tools.schema import against
from tools.schema.facts import difference, read

#: What `make test` runs on.
EVERY_DAY = (against.NEWEST_POSTGRES, "mysql", "mariadb")


def main(arguments: Sequence[str] | None = None) -> int:
    """1 when the two schemas differ."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.schema",
        description=tools.schema.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    two = verbs.add_parser("compare", help="two installed schemas, by the URLs of their databases")
    two.add_argument("url", nargs=2)
    two.add_argument("--schema", nargs="+", default=["penstock"], help="one name, or two")
    two.add_argument("--rows", action="store_true", help="what the tables hold, too")
    other = verbs.add_parser("against", help="what another checkout installs, and what this one")
    other.add_argument("checkout", type=Path)
    other.add_argument("--on", action="append", choices=against.SERVERS, metavar="SERVER")
    options = parser.parse_args(arguments)
    results = _two(options) if options.verb == "compare" else _against(options)
    for name, lines in results.items():
        for line in lines or ["no difference"]:
            print(f"{name}: {line}" if name else line)
    return 1 if any(results.values()) else 0


def _two(options: argparse.Namespace) -> dict[str, list[str]]:
    facts = []
    for url, schema in zip(options.url, [*options.schema, options.schema[0]], strict=False):
        with database.connect(url) as connection:
            facts.append(read(connection, schema, rows=options.rows))
    return {"": difference(*facts)}


def _against(options: argparse.Namespace) -> dict[str, list[str]]:
    results = {}
    for name in options.on or EVERY_DAY:
        with against.server(name) as url:
            both = against.facts_of([options.checkout.resolve(), against.ROOT], url)
        results[name] = difference(*both)
    return results


if __name__ == "__main__":
    sys.exit(main())
