"""How many examples a long run takes, and its progress: a line of JSON a test in the file EQUIPOISE_FUZZ_LOG.

python tests/fuzz/count.py fuzz.jsonl docs/security.md    # writes the sums between the marks on the page
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

EXAMPLES = int(os.environ.get("EQUIPOISE_FUZZ_EXAMPLES", "1500"))  # of each method in a long run


@contextmanager
def counted(kind: str, name: str) -> Iterator[Callable[[], None]]:
    """Counts the calls of what it gives, and writes them down when the block ends, well or not."""
    count, cpu, outcome = 0, time.process_time(), "failed"

    def tick() -> None:
        nonlocal count
        count += 1

    try:
        yield tick
        outcome = "passed"
    finally:
        line = {"kind": kind, "name": name, "examples": count, "seconds": time.process_time() - cpu, "outcome": outcome}
        file = os.environ.get("EQUIPOISE_FUZZ_LOG")
        if file:
            with Path(file).open("a") as log:
                log.write(json.dumps(line) + "\n")


def summary(log: Path) -> str:
    """The sums of a run as a table; a test that was run again counts with its last line."""
    last = {(line["kind"], line["name"]): line for line in map(json.loads, log.read_text().splitlines())}
    rows = ["| kind | methods and options | examples | CPU seconds | failed |", "|---|---:|---:|---:|---:|"]
    for kind in sorted({kind for kind, _ in last}):
        lines = [line for (its, _), line in last.items() if its == kind]
        count, seconds = (sum(line[key] for line in lines) for key in ("examples", "seconds"))
        failed = sum(line["outcome"] != "passed" for line in lines)
        rows.append(f"| {kind} | {len(lines)} | {count:,} | {seconds:,.0f} | {failed} |")
    total = sum(line["examples"] for line in last.values())
    return "\n".join([*rows, "", f"In all {total:,} examples."])


if __name__ == "__main__":
    page = Path(sys.argv[2])
    block = f"<!-- fuzzed -->\n\n{summary(Path(sys.argv[1]))}\n\n<!-- end -->"
    page.write_text(re.sub(r"<!-- fuzzed -->.*?<!-- end -->", lambda _: block, page.read_text(), flags=re.DOTALL))
